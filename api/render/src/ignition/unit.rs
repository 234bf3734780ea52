//! Which texts Ignition takes for a systemd unit: those that its library `go-systemd` reads.
//!
//! The library refuses lines that are longer than systemd reads. It looks for them in what its buffer holds, so the buffer
//! is part of the rule.

/// The size of the library's buffer, in bytes.
const BUFFER: usize = 4096;
/// The longest line, in bytes.
const LINE: usize = 2048;

/// Why Ignition refuses the content of a unit or a drop-in. None if it takes it.
pub(super) fn error(text: &str) -> Option<&'static str> {
    let mut reader = Reader { text, at: 0, filled: 0 };
    let mut next = Step::BeforeSection;
    loop {
        if reader.sees_a_long_line() {
            return Some("must have lines of less than 2048 bytes");
        }
        match reader.step(next) {
            Ok(Some(step)) => next = step,
            Ok(None) => return None,
            Err(error) => return Some(error),
        }
    }
}

/// What is read next.
#[derive(Clone, Copy)]
enum Step {
    BeforeSection,
    SectionName,
    AfterSectionName,
    SectionOrOption,
    OptionName,
    OptionValue,
    Comment { in_section: bool },
}

struct Reader<'a> {
    text: &'a str,
    /// Where reading goes on.
    at: usize,
    /// Up to where the text is in the buffer.
    filled: usize,
}

impl<'a> Reader<'a> {
    fn sees_a_long_line(&self) -> bool {
        let seen = &self.text.as_bytes()[self.at..self.filled];
        seen.len() >= LINE && !seen[..LINE].iter().any(|byte| b"\r\n".contains(byte))
    }

    /// Reads one thing. None at the end of the text.
    fn step(&mut self, step: Step) -> Result<Option<Step>, &'static str> {
        let next = match step {
            Step::BeforeSection | Step::SectionOrOption => {
                let in_section = matches!(step, Step::SectionOrOption);
                match self.character() {
                    None => return Ok(None),
                    Some('[') => Step::SectionName,
                    Some('#' | ';') => Step::Comment { in_section },
                    Some(c) if in_section && !c.is_whitespace() => {
                        self.at -= c.len_utf8();
                        Step::OptionName
                    }
                    Some(_) => step,
                }
            }
            Step::SectionName if self.through(b']').ends_with(']') => Step::AfterSectionName,
            Step::SectionName => return Err("must have a ] at the end of the name of a section"),
            Step::AfterSectionName if self.line().trim().is_empty() => Step::SectionOrOption,
            Step::AfterSectionName => return Err("must have nothing after the name of a section"),
            Step::OptionName => self.option_name()?,
            Step::OptionValue => {
                let line = self.line();
                if line.ends_with('\\') { Step::OptionValue } else { Step::SectionOrOption }
            }
            Step::Comment { in_section } => {
                // A backslash continues a comment, too.
                while {
                    let line = self.line();
                    line.strip_suffix(' ').unwrap_or(line).ends_with('\\')
                } {}
                if in_section { Step::SectionOrOption } else { Step::BeforeSection }
            }
        };
        Ok(Some(next))
    }

    fn option_name(&mut self) -> Result<Step, &'static str> {
        loop {
            match self.character() {
                Some('=') => return Ok(Step::OptionValue),
                Some('\n' | '\r') | None => return Err("must have options of the form Name=value"),
                Some(_) => {}
            }
        }
    }

    fn character(&mut self) -> Option<char> {
        let c = self.text[self.at..].chars().next()?;
        if self.filled < self.at + c.len_utf8() {
            self.fill();
        }
        self.at += c.len_utf8();
        Some(c)
    }

    /// Reads a line, without what ends it. A carriage return before a line feed stays.
    fn line(&mut self) -> &'a str {
        let line = self.through(b'\n');
        let line = line.strip_suffix('\r').unwrap_or(line);
        line.strip_suffix('\n').unwrap_or(line)
    }

    /// Reads up to and with a character, or to the end.
    fn through(&mut self, end: u8) -> &'a str {
        let start = self.at;
        loop {
            if let Some(length) = self.text.as_bytes()[self.at..self.filled].iter().position(|byte| *byte == end) {
                self.at += length + 1;
                break;
            }
            if self.filled == self.text.len() {
                self.at = self.filled;
                break;
            }
            if self.filled - self.at >= BUFFER {
                self.at = self.filled;
            }
            self.fill();
        }
        &self.text[start..self.at]
    }

    fn fill(&mut self) {
        self.filled = self.text.len().min(self.at + BUFFER);
    }
}

#[cfg(test)]
mod tests {
    use super::error;

    #[test]
    fn units_are_taken_or_not_as_by_ignition() {
        let long = |length: usize| format!("[Unit]\nDescription={}\n", "x".repeat(length));
        for (text, taken) in [
            ("", true),
            ("no section at all", true),
            ("[Unit]\nDescription=a\n", true),
            ("[Unit", false),
            ("[Unit] rest\n", false),
            ("[Unit]\nDescription\n", false),
            ("[Unit]\nDescription", false),
            ("[Service]\nExecStart=a \\\n  b\n", true),
            ("# a comment [\n[Unit]\n; another\nA=b", true),
            (&long(1000), true),
            (&long(3000), false),
        ] {
            assert_eq!(error(text).is_none(), taken, "{text:.40}");
        }
    }
}
