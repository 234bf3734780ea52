//! The functions of a file, with their sizes.

/// A function as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The number of its first line.
    pub line: usize,
    /// How many lines it has, from `fn` to the brace that closes it.
    pub lines: usize,
    /// The number of the line with the brace that opens its body.
    pub opened: usize,
    /// How many parameters it has, `self` aside.
    pub parameters: usize,
}

/// The functions with a name in this code, closures aside. Comments and strings must have been blanked out.
pub fn functions(code: &str) -> Vec<Function> {
    let is_word = |before: char| before.is_alphanumeric() || before == '_';
    let starts = code.match_indices("fn ").map(|(at, _)| at).filter(|at| !code[..*at].ends_with(is_word));
    starts.filter_map(|at| function(code, at)).collect()
}

fn function(code: &str, at: usize) -> Option<Function> {
    let rest = &code[at + "fn ".len()..];
    let (name, rest) = rest.split_at(rest.find(['<', '('])?);
    let rest = if rest.starts_with('<') { &rest[enclosed(rest)?.len() + 2..] } else { rest };
    let parameters = enclosed(rest)?;
    let rest = &rest[parameters.len() + 2..];
    let body = code.len() - rest.len() + body(rest);
    let length = body + item(&code[body..]) - at;
    let line_of = |at: usize| code[..at].matches('\n').count() + 1;
    Some(Function {
        name: name.trim().to_owned(),
        line: line_of(at),
        opened: line_of(body),
        lines: code[at..at + length].matches('\n').count() + 1,
        parameters: split(parameters).into_iter().filter(|parameter| !is_self(parameter)).count(),
    })
}

/// The text between the bracket at the start and the one that closes it.
fn enclosed(text: &str) -> Option<&str> {
    let (mut depth, mut before) = (0_usize, ' ');
    for (at, next) in text.char_indices() {
        match next {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if matches!(before, '-' | '=') => {}
            ')' | ']' | '}' | '>' if depth == 1 => return Some(&text[1..at]),
            ')' | ']' | '}' | '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = next;
    }
    None
}

/// Splits a list at the commas that are in no brackets.
fn split(list: &str) -> Vec<&str> {
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    while let Some(next) = list[at..].chars().next() {
        at += match next {
            '(' | '[' | '{' | '<' => enclosed(&list[at..]).map_or(1, |inner| inner.len() + 2),
            next => next.len_utf8(),
        };
        if next == ',' {
            parts.push(&list[start..at - 1]);
            start = at;
        }
    }
    parts.push(&list[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn is_self(parameter: &str) -> bool {
    let name = parameter.split(':').next().unwrap_or_default();
    name.split_whitespace().last().is_some_and(|last| last.trim_start_matches('&') == "self")
}

/// Where the body begins, or the semicolon of a function without one. A return type may hold a semicolon in brackets.
fn body(rest: &str) -> usize {
    let mut at = 0;
    while let Some(next) = rest[at..].chars().next() {
        at += match next {
            '{' | ';' => return at,
            '(' | '[' => enclosed(&rest[at..]).map_or(1, |inner| inner.len() + 2),
            next => next.len_utf8(),
        };
    }
    at
}

/// The length up to the brace that closes the first one. Other brackets do not count: `<` may be an operator.
fn item(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, next) in text.char_indices() {
        match next {
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured() {
        let code = "
            impl A {
                pub(crate) fn short(&'a mut self) -> [u8; 2] { [1, 2] }
                async fn long<T: Fn(u8) -> (u8, u8), const N: usize>(
                    self: Arc<Self>,
                    map: BTreeMap<u8, (u8, u8)>,
                    call: impl Fn(u8, u8) -> bool,
                ) -> bool
                where
                    T: Copy,
                {
                    if 1 < 2 { call(1, 2) } else { let f: fn(u8) -> u8 = g; }
                }
            }
            trait B { fn none(); }
        ";
        let found: Vec<_> =
            functions(code).into_iter().map(|it| (it.name, it.line, it.opened, it.lines, it.parameters)).collect();
        assert_eq!(
            found,
            [("short".to_owned(), 3, 3, 1, 0), ("long".to_owned(), 4, 11, 10, 2), ("none".to_owned(), 15, 15, 1, 0)]
        );
    }
}
