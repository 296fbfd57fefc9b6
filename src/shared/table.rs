//! Tables of text.

use super::out::Out;

/// A table with right-aligned numbers and left-aligned words.
pub(crate) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; a heading that starts with `>` makes its column right-aligned.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let first = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Table { right, rows: vec![first] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn print(&self, out: &mut Out) {
        for line in self.lines() {
            out.line(line);
        }
    }

    fn lines(&self) -> Vec<String> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).zip(&self.right);
            let cells: Vec<String> = cells
                .map(
                    |((cell, &width), right)| {
                        if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                    },
                )
                .collect();
            cells.join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">n", "rest"]);
        table.row(["a".into(), "10".into(), "x".into()]);
        table.row(["long".into(), "7".into(), "y".into()]);
        assert_eq!(table.lines(), ["name   n  rest", "a     10  x", "long   7  y"]);
    }
}
