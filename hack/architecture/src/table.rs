//! Tables in Markdown.

/// The rows of the table whose head begins with these cells: each cell as the words in backquotes that it holds.
pub fn table(markdown: &str, head: &[&str]) -> Vec<Vec<Vec<String>>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = markdown.lines();
    let is_head = |line: &str| line.starts_with('|') && cells(line).iter().zip(head).all(|(cell, head)| cell == head);
    if !lines.any(is_head) {
        return vec![];
    }
    let quoted = |cell: &String| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    lines
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| cells(line).iter().map(quoted).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_found_by_its_head() {
        let text = "| a | b |\n|---|---|\n| `x` | |\n\n| crate | uses |\n|---|---|\n| `api` | nothing |\n| `web` | `api`, `run` |\n";
        let rows = table(text, &["crate", "uses"]);
        assert_eq!(
            rows,
            [
                vec![vec!["api".to_owned()], vec![]],
                vec![vec!["web".to_owned()], vec!["api".to_owned(), "run".to_owned()]]
            ]
        );
        assert!(table(text, &["room", "uses"]).is_empty());
    }
}
