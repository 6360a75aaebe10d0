//! One line of a journal.

/// One write: where, what was there, what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) path: String,
    pub(super) before: String,
    pub(super) written: String,
}

/// Changes with the format, so that a journal of another version is never misread.
const VERSION: &str = "v1";

impl Record {
    pub(super) fn new(path: &str, before: &str, written: &str) -> Self {
        Self { path: path.to_owned(), before: before.to_owned(), written: written.to_owned() }
    }

    /// The line, its end included.
    pub(super) fn line(&self) -> String {
        let fields = [&self.path, &self.before, &self.written].map(|field| escape(field));
        format!("{VERSION}\t{}\n", fields.join("\t"))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        if fields.next()? != VERSION {
            return None;
        }
        let record = Self {
            path: unescape(fields.next()?)?,
            before: unescape(fields.next()?)?,
            written: unescape(fields.next()?)?,
        };
        fields.next().is_none().then_some(record)
    }
}

/// The records of a journal, and the numbers (from 1) of lines that are none. A last line without
/// its end was being written when its process ended: the change had not been made, so it counts
/// neither as record nor as damage.
pub(super) fn parse(text: &str) -> (Vec<Record>, Vec<usize>) {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut records = Vec::new();
    let mut damaged = Vec::new();
    for (index, line) in whole.lines().enumerate() {
        match Record::parse(line) {
            Some(record) => records.push(record),
            None => damaged.push(index + 1),
        }
    }
    (records, damaged)
}

/// Characters that would end a field, and how they are written.
const ESCAPES: [(char, char); 4] = [('\\', '\\'), ('\t', 't'), ('\n', 'n'), ('\r', 'r')];

fn escape(field: &str) -> String {
    let mut escaped = String::with_capacity(field.len());
    for character in field.chars() {
        match ESCAPES.iter().find(|(plain, _)| *plain == character) {
            Some((_, code)) => escaped.extend(['\\', *code]),
            None => escaped.push(character),
        }
    }
    escaped
}

fn unescape(field: &str) -> Option<String> {
    let mut plain = String::with_capacity(field.len());
    let mut characters = field.chars();
    while let Some(character) = characters.next() {
        if character == '\\' {
            let code = characters.next()?;
            plain.push(ESCAPES.iter().find(|(_, known)| *known == code)?.0);
        } else {
            plain.push(character);
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::{Record, parse};

    fn awkward() -> Record {
        Record::new("/sys/a b\tc", "1\n2\\t\r", "")
    }

    #[test]
    fn reads_back_what_it_writes() {
        assert_eq!(parse(&awkward().line()), (vec![awkward()], vec![]));
    }

    #[test]
    fn takes_a_torn_last_line_for_a_change_not_made() {
        let first = Record::new("/sys/x", "0", "1");
        let text = format!("{}{}", first.line(), awkward().line());
        for end in first.line().len()..text.len() {
            assert_eq!(parse(&text[..end]), (vec![first.clone()], vec![]), "cut at {end}");
        }
    }

    #[test]
    fn names_lines_that_are_no_records() {
        let good = Record::new("/sys/x", "0", "1");
        let text = format!("v2\ta\tb\tc\n{}garbage\nv1\ta\tb\n\nv1\ta\tb\\\tc\n", good.line());
        assert_eq!(parse(&text), (vec![good], vec![1, 3, 4, 5, 6]));
    }
}
