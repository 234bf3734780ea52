//! Text in columns, with numbers aligned to the right.

use std::fmt;

/// A table. Its `Display` aligns the columns: numbers to the right, other text to the left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this head.
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub fn add<const N: usize>(&mut self, row: [&str; N]) {
        self.rows.push(row.map(str::to_owned).to_vec());
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    }

    /// Whether all cells of the column, except its head and empty ones, are numbers.
    fn is_number(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().skip(1).map(|row| row[column].as_str()).filter(|cell| !cell.is_empty());
        let is_number = |cell: &str| cell.parse::<f64>().is_ok();
        cells.next().is_some_and(is_number) && cells.all(is_number)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let layout: Vec<_> = (0..columns).map(|column| (self.width(column), self.is_number(column))).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&layout).map(|(cell, (width, is_number))| {
                if *is_number { format!("{cell:>width$}") } else { format!("{cell:width$}") }
            });
            writeln!(formatter, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["NAME", "COUNT", "NOTE"]);
        table.add(["a", "1", ""]);
        table.add(["longer", "12.50", "x"]);
        assert_eq!(table.to_string(), "NAME    COUNT  NOTE\na           1\nlonger  12.50  x\n");
    }
}
