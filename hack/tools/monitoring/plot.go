package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Sizes of a picture: panels in two columns, each with a title, an area, and a list of its series.
const (
	panelWidth, panelHeight   = 440.0, 250.0
	areaLeft, areaTop         = 52.0, 30.0
	areaWidth, areaHeight     = 360.0, 130.0
	legendTop, legendRow      = 190.0, 14.0
	legendColumns, legendRows = 2, 4
	// rows of a panel whose series are rows.
	mostRows = 9
	// letters of the name of a series.
	letters = 26
	// pointGap is the time in seconds between two points between which there is no line.
	pointGap = 20.0
)

// largest is the size of a picture in bytes: each new one stays in the history of the repository.
const largest = 60 << 10

// colours are readable on a dark and on a light page. So are the texts, which are grey.
var colours = []string{"#3d8fe0", "#e07b39", "#3fa34d", "#c4519a", "#8c6bd1", "#b59a21", "#2aa5a0", "#d65a5a"}

// named are the colours that the names of values have.
var named = map[string]string{
	"green": "#3fa34d", "red": "#d65a5a", "orange": "#e07b39", "yellow": "#b59a21", "blue": "#3d8fe0", "purple": "#8c6bd1",
}

const grey = "#7d8590"

func compare(a, b string) int { return cmp.Compare(a, b) }

// plot draws each dashboard of a record as a picture in the folder into.
func plot(file, into string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var run record
	if err := json.Unmarshal(text, &run); err != nil {
		return err
	}
	if len(run.Dashboards) == 0 {
		return fmt.Errorf("%s: no dashboards", file)
	}
	for _, dashboard := range run.Dashboards {
		picture := dashboard.svg(run.Seconds)
		if len(picture) > largest {
			return fmt.Errorf("the picture of %s has %d bytes, more than %d", dashboard.Name, len(picture), largest)
		}
		if err := os.WriteFile(filepath.Join(into, dashboard.Name+".svg"), []byte(picture), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// canvas is a picture under way.
type canvas struct{ strings.Builder }

func (c *canvas) add(format string, values ...any) { fmt.Fprintf(c, format+"\n", values...) }

// text writes a text; class is of the style sheet.
func (c *canvas) text(class string, x, y float64, of string) {
	c.add(`<text class="%s" x="%s" y="%s">%s</text>`, class, number(x), number(y), html.EscapeString(of))
}

// path draws what is not empty; class is of the style sheet.
func (c *canvas) path(class, colour, d string) {
	if d != "" {
		c.add(`<path class="%s" stroke="%s" d="%s"/>`, class, colour, d)
	}
}

// number is a coordinate.
func number(value float64) string { return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64) }

func (d *recordedDashboard) svg(seconds float64) string {
	height := panelHeight*math.Ceil(float64(len(d.Panels))/2) + 10
	var c canvas
	c.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" role="img" aria-label="%s">`, number(2*panelWidth), number(height),
		html.EscapeString("The dashboard "+d.Title))
	c.add(`<style>text{font:11px sans-serif;fill:%s}.t{font-size:13px;font-weight:bold}.y{text-anchor:end}.x{text-anchor:middle}`+
		`.g{stroke:%s;stroke-opacity:.25}.l{fill:none;stroke-width:1.5}.d{stroke-width:4;stroke-linecap:round}</style>`, grey, grey)
	for index, panel := range d.Panels {
		c.add(`<g transform="translate(%s,%s)">`, number(panelWidth*float64(index%2)), number(panelHeight*float64(index/2)))
		panel.draw(&c, seconds)
		c.add("</g>")
	}
	c.add("</svg>")
	return c.String()
}

func (p *recordedPanel) draw(c *canvas, seconds float64) {
	all, title, most := len(p.Series), p.Title, legendColumns*legendRows
	switch p.Type {
	case "stacked":
		title += " (stacked)"
	case "timeline", "table":
		most = mostRows
	}
	if p.Series = highest(p.Series, most); len(p.Series) < all {
		title += fmt.Sprintf(" (%d of %d)", len(p.Series), all)
	}
	c.text("t", areaLeft, 18, title)
	drawTimes(c, seconds)
	if all == 0 {
		c.text("x", areaLeft+areaWidth/2, areaTop+areaHeight/2, "no data in this run")
		return
	}
	switch p.Type {
	case "timeline", "table":
		p.drawRows(c, seconds)
	case "stacked":
		p.drawLines(c, seconds, stacked(p.Series))
	default:
		p.drawLines(c, seconds, p.Series)
	}
}

// highest are so many series with the highest values, in their order.
func highest(all []series, most int) []series {
	if len(all) <= most {
		return all
	}
	top := func(of series) float64 {
		high := math.Inf(-1)
		for _, point := range of.Points {
			high = math.Max(high, point[1])
		}
		return high
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b series) int { return cmp.Compare(top(b), top(a)) })
	shown := sorted[:most]
	slices.SortStableFunc(shown, func(a, b series) int { return compare(a.Legend, b.Legend) })
	return shown
}

// drawTimes draws the axis of times, in minutes.
func drawTimes(c *canvas, seconds float64) {
	step := 60 * math.Max(1, math.Ceil(seconds/60/6))
	for at := 0.0; at <= seconds; at += step {
		x := areaLeft + areaWidth*at/seconds
		c.add(`<path class="g" d="M%s %sv%s"/>`, number(x), number(areaTop), number(areaHeight))
		c.text("x", x, areaTop+areaHeight+14, fmt.Sprintf("%g min", at/60))
	}
}

// drawLines draws series as lines in an area with an axis of values.
func (p *recordedPanel) drawLines(c *canvas, seconds float64, drawn []series) {
	low, high, scale := 0.0, 0.0, units[p.Unit].scale
	if scale == 0 {
		scale = 1
	}
	for _, line := range drawn {
		for _, point := range line.Points {
			low, high = math.Min(low, point[1]*scale), math.Max(high, point[1]*scale)
		}
	}
	step := tick(high - low)
	low, high = math.Floor(low/step)*step, math.Max(math.Ceil(high/step)*step, step)
	y := func(scaled float64) float64 { return areaTop + areaHeight*(high-scaled)/(high-low) }
	for index := 0; low+float64(index)*step <= high+step/2; index++ {
		value := low + float64(index)*step
		c.add(`<path class="g" d="M%s %sh%s"/>`, number(areaLeft), number(y(value)), number(areaWidth))
		c.text("y", areaLeft-5, y(value)+4, fmt.Sprintf("%.4g%s", value, units[p.Unit].name))
	}
	for index, line := range drawn {
		colour := colours[index]
		lines, dots := paths(pixels(line.Points, seconds, func(value float64) float64 { return y(value * scale) }))
		c.path("l", colour, lines)
		c.path("d", colour, dots)
		drawLegend(c, index, colour, line.Legend)
	}
}

// pixel is a place in a picture, in whole pixels: that is short.
type pixel struct{ x, y int }

// pixels are the places of points, in parts between which there are gaps.
func pixels(points [][2]float64, seconds float64, y func(float64) float64) [][]pixel {
	var parts [][]pixel
	for index, point := range points {
		if index == 0 || point[0]-points[index-1][0] > pointGap {
			parts = append(parts, nil)
		}
		last := &parts[len(parts)-1]
		*last = append(*last, pixel{int(math.Round(areaLeft + areaWidth*point[0]/seconds)), int(math.Round(y(point[1])))})
	}
	return parts
}

// paths are the lines of parts, each place from the one before, and the dots of those that have one place only: a line would not be
// seen. Where nothing changes there is one place.
func paths(parts [][]pixel) (lines, dots string) {
	for _, part := range parts {
		if places := slices.Compact(slices.Clone(part)); len(places) == 1 {
			dots += fmt.Sprintf("M%d %dh0", places[0].x, places[0].y)
			continue
		}
		last := part[0]
		lines += fmt.Sprintf("M%d %d", last.x, last.y)
		for index, place := range part[1:] {
			if next := index + 2; next < len(part) && place.y == last.y && part[next].y == place.y {
				continue
			}
			lines += fmt.Sprintf("l%d %d", place.x-last.x, place.y-last.y)
			last = place
		}
	}
	return lines, dots
}

func drawLegend(c *canvas, index int, colour, name string) {
	x := areaLeft + float64(index%legendColumns)*areaWidth/legendColumns
	y := legendTop + legendRow*float64(index/legendColumns)
	c.add(`<path class="l" stroke="%s" d="M%s %sh10"/>`, colour, number(x), number(y))
	c.text("m", x+14, y+4, shortened(name))
}

// drawRows draws each series as a row, with the colours of its values, where it has any.
func (p *recordedPanel) drawRows(c *canvas, seconds float64) {
	height := areaHeight / float64(max(len(p.Series), 3))
	for index, row := range p.Series {
		y := areaTop + height*float64(index)
		for _, part := range parts(row.Points) {
			begin, end := areaLeft+areaWidth*part.begin/seconds, areaLeft+areaWidth*part.end/seconds
			c.add(`<path fill="%s" fill-opacity=".4" d="M%s %sh%sv%sh-%[4]sz"/>`, p.colour(part.value), number(begin), number(y+1),
				number(math.Max(end-begin, 1)), number(height-2))
		}
		c.text("m", areaLeft+4, y+height/2+4, shortened(row.Legend))
	}
	p.drawValues(c)
}

// drawValues lists the names of values that the rows have.
func (p *recordedPanel) drawValues(c *canvas) {
	seen := map[float64]bool{}
	for _, row := range p.Series {
		for _, point := range row.Points {
			seen[point[1]] = true
		}
	}
	index := 0
	for _, value := range sortedKeys(seen) {
		if name, found := valueNames[p.Values][strconv.FormatFloat(value, 'f', -1, 64)]; found {
			drawLegend(c, index, p.colour(value), name[0])
			index++
		}
	}
}

func (p *recordedPanel) colour(value float64) string {
	if name, found := valueNames[p.Values][strconv.FormatFloat(value, 'f', -1, 64)]; found {
		return named[name[1]]
	}
	return grey
}

// part is a time in which a series has one value.
type part struct{ begin, end, value float64 }

func parts(points [][2]float64) []part {
	var all []part
	for index, point := range points {
		isGap := index == 0 || point[0]-points[index-1][0] > pointGap
		if last := len(all) - 1; !isGap {
			all[last].end = point[0]
			if all[last].value == point[1] {
				continue
			}
		}
		all = append(all, part{point[0], point[0], point[1]})
	}
	return all
}

// stacked are series of which each begins where the one before ends. A series without a value counts as zero there.
func stacked(of []series) []series {
	sums := map[float64]float64{}
	for _, line := range of {
		for _, point := range line.Points {
			sums[point[0]] = 0
		}
	}
	var all []series
	for _, line := range of {
		sum := series{Legend: line.Legend}
		for _, at := range sortedKeys(sums) {
			sums[at] += valueAt(line.Points, at)
			sum.Points = append(sum.Points, [2]float64{at, sums[at]})
		}
		all = append(all, sum)
	}
	return all
}

// valueAt is the last value before a time, if it is not older than a gap; 0 otherwise.
func valueAt(points [][2]float64, at float64) float64 {
	index, found := slices.BinarySearchFunc(points, at, func(point [2]float64, at float64) int { return cmp.Compare(point[0], at) })
	switch {
	case found:
		return points[index][1]
	case index > 0 && index < len(points) && points[index][0]-points[index-1][0] <= pointGap:
		return points[index-1][1]
	}
	return 0
}

// tick is a round distance of lines, of which two to five fit into a height.
func tick(height float64) float64 {
	if height <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(height/2)))
	for _, factor := range []float64{1, 2, 2.5, 5, 10} {
		if height/(factor*unit) <= 5 {
			return factor * unit
		}
	}
	return 10 * unit
}

// units are Grafana's names of units: how they are written behind a number, and by what a value is multiplied before.
var units = map[string]struct {
	name  string
	scale float64
}{
	"s": {" s", 1}, "bytes": {" MiB", 1.0 / (1 << 20)}, "percentunit": {" %", 100}, "cps": {"/s", 1}, "reqps": {"/s", 1},
}

func shortened(name string) string {
	if runes := []rune(name); len(runes) > letters {
		return string(runes[:letters-1]) + "…"
	}
	return name
}
