package main

import (
	"strings"
	"testing"
)

// drawn is what a line becomes of times and values, each in pixels from the area's left upper corner.
func drawn(points ...[2]float64) (lines, dots string) {
	return paths(pixels(points, areaWidth, func(value float64) float64 { return value }))
}

func TestPaths(t *testing.T) {
	for name, test := range map[string]struct {
		points      [][2]float64
		lines, dots string
	}{
		"nothing":                       {},
		"a line":                        {points: [][2]float64{{0, 5}, {10, 6}}, lines: "M52 5l10 1"},
		"where nothing changes":         {points: [][2]float64{{0, 5}, {10, 5}, {20, 5}, {30, 6}}, lines: "M52 5l20 0l10 1"},
		"one sample":                    {points: [][2]float64{{7, 5}}, dots: "M59 5h0"},
		"some samples at one place":     {points: [][2]float64{{7, 5}, {7.2, 5}, {7.4, 5.1}}, dots: "M59 5h0"},
		"one place that is left":        {points: [][2]float64{{7, 5}, {7.2, 5}, {9, 5}}, lines: "M59 5l2 0"},
		"one sample between two gaps":   {points: [][2]float64{{0, 5}, {10, 5}, {50, 6}, {90, 7}, {100, 7}}, lines: "M52 5l10 0M142 7l10 0", dots: "M102 6h0"},
		"one sample before a gap":       {points: [][2]float64{{0, 5}, {50, 6}, {60, 6}}, lines: "M102 6l10 0", dots: "M52 5h0"},
		"one sample after a gap":        {points: [][2]float64{{0, 5}, {10, 5}, {50, 6}}, lines: "M52 5l10 0", dots: "M102 6h0"},
		"two samples, each of them one": {points: [][2]float64{{0, 5}, {50, 6}}, dots: "M52 5h0M102 6h0"},
	} {
		if lines, dots := drawn(test.points...); lines != test.lines || dots != test.dots {
			t.Errorf("%s: lines %q and dots %q, not %q and %q", name, lines, dots, test.lines, test.dots)
		}
	}
}

func TestPanelOfSingleSamples(t *testing.T) {
	panel := recordedPanel{Title: "Time to create", Series: []series{{Legend: "a", Points: [][2]float64{{350, 53}}}}}
	dashboard := recordedDashboard{Title: "Rollout", Panels: []recordedPanel{panel}}
	picture := dashboard.svg(360)
	if !strings.Contains(picture, `<path class="d" stroke="#3d8fe0" d="M402 `) {
		t.Errorf("no dot in %s", picture)
	}
	if strings.Contains(picture, `d=""`) {
		t.Errorf("an empty path in %s", picture)
	}
}
