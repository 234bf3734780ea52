//! Output for people: lines that stay, and below them a table that is redrawn. Without a terminal, only lines.

use std::io::{self, IsTerminal, Write};

use crate::devcluster::machines::{Row, rows_table};

/// How many machines fit on a terminal.
const SHOWN: usize = 16;

/// Standard output.
#[derive(Debug)]
pub(crate) struct Screen<W: Write> {
    to: W,
    is_terminal: bool,
    /// How many lines the table on the terminal has.
    drawn: usize,
    rows: Vec<Row>,
}

impl Screen<io::Stdout> {
    pub(crate) fn new() -> Self {
        let to = io::stdout();
        let is_terminal = to.is_terminal();
        Self { to, is_terminal, drawn: 0, rows: Vec::new() }
    }
}

impl<W: Write> Screen<W> {
    /// Prints lines that stay.
    pub(crate) fn print(&mut self, text: &str) -> io::Result<()> {
        self.erase()?;
        writeln!(self.to, "{text}")?;
        self.draw()
    }

    /// Shows the present machines.
    pub(crate) fn show(&mut self, rows: Vec<Row>) -> io::Result<()> {
        if rows == self.rows {
            return Ok(());
        }
        if !self.is_terminal {
            self.print_changes(&rows)?;
        }
        self.rows = rows;
        self.erase()?;
        self.draw()
    }

    fn print_changes(&mut self, rows: &[Row]) -> io::Result<()> {
        for row in rows.iter().filter(|row| !self.rows.contains(row)) {
            writeln!(self.to, "{}", row.line())?;
        }
        let is_gone = |old: &&Row| !rows.iter().any(|row| row.name == old.name);
        for row in self.rows.iter().filter(is_gone) {
            writeln!(self.to, "machine {}: gone", row.name)?;
        }
        self.to.flush()
    }

    fn erase(&mut self) -> io::Result<()> {
        if self.drawn > 0 {
            // Move to the first line of the table, and clear from there.
            write!(self.to, "\x1b[{}A\x1b[J", self.drawn)?;
            self.drawn = 0;
        }
        Ok(())
    }

    fn draw(&mut self) -> io::Result<()> {
        if self.is_terminal && !self.rows.is_empty() {
            let mut text = rows_table(&self.rows[..self.rows.len().min(SHOWN)]).to_string();
            if let Some(more @ 1..) = self.rows.len().checked_sub(SHOWN) {
                text.extend(["and ", &more.to_string(), " more\n"]);
            }
            self.drawn = text.lines().count() + 1;
            // Long lines are cut off: wrapped ones would count as more than one line.
            write!(self.to, "\x1b[?7l\n{text}\x1b[?7h")?;
        }
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, phase: &str) -> Row {
        let none = || "-".to_owned();
        Row {
            name: name.to_owned(),
            phase: phase.to_owned(),
            node: none(),
            provider_id: none(),
            pods: String::new(),
            reason: String::new(),
        }
    }

    fn screen(is_terminal: bool) -> Screen<Vec<u8>> {
        Screen { to: Vec::new(), is_terminal, drawn: 0, rows: Vec::new() }
    }

    #[test]
    fn without_a_terminal_each_change_is_a_line() {
        let mut screen = screen(false);
        screen.print("hello").unwrap();
        screen.show(vec![row("a", "Pending"), row("b", "Pending")]).unwrap();
        screen.show(vec![row("a", "Running"), row("b", "Pending")]).unwrap();
        screen.show(vec![row("a", "Running")]).unwrap();
        let expected = "hello\nmachine a: Pending\nmachine b: Pending\nmachine a: Running\nmachine b: gone\n";
        assert_eq!(String::from_utf8(screen.to).unwrap(), expected);
    }

    #[test]
    fn on_a_terminal_the_table_is_redrawn_below_the_lines() {
        let mut screen = screen(true);
        screen.show(vec![row("a", "Pending")]).unwrap();
        screen.to.clear();
        screen.print("hello").unwrap();
        let printed = String::from_utf8(screen.to).unwrap();
        assert!(printed.starts_with("\x1b[3A\x1b[Jhello\n\x1b[?7l\nMACHINE"), "{printed:?}");
    }
}
