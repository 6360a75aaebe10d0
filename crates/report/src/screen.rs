//! How a text is laid out: for a person at a terminal, or for a file that programs may read.

use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter};

use crate::number::SPACE;

/// How a text is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Columns of the longest line, if words allow.
    pub width: u16,
    /// Whether to write escape sequences for color. No information is given by color alone.
    pub is_coloured: bool,
    /// Whether a person reads it: digits are then in groups of three, with the sign U+2212.
    /// Otherwise numbers are as programs read them: `-1234.5`.
    pub is_for_people: bool,
}

impl Screen {
    /// A text without colors that may be read by programs: a file of some columns.
    pub const fn file(width: u16) -> Self {
        Self { width, is_coloured: false, is_for_people: false }
    }

    /// A text with numbers by [`crate::number`], as it is shown on this screen.
    pub fn shown(self, text: &str) -> String {
        self.digits(text).replace(SPACE, " ")
    }

    /// The text broken into lines, with a line end after the last one. No number is broken.
    pub fn fill(self, text: &str) -> String {
        self.shown(&(textwrap::fill(&self.digits(text), lines(self.width.into())) + "\n"))
    }

    /// The text as it fits this screen: for people, lines that are too long are broken at blanks
    /// and go on with their indentation; for programs as by [`Self::plain`].
    pub fn fitted(self, text: &str) -> String {
        if !self.is_for_people {
            return self.plain(text);
        }
        let fitted = |line: &str| {
            let words = line.trim_start_matches(' ');
            let indentation = &line[..line.len() - words.len()];
            let options =
                lines(self.width.into()).initial_indent(indentation).subsequent_indent(indentation);
            match display_width(line.trim_end()) <= usize::from(self.width) {
                true => line.to_owned(),
                false => textwrap::fill(words, options),
            }
        };
        text.split_inclusive('\n').map(fitted).collect()
    }

    /// The text, for programs in ASCII: the characters of Dimmer's own words are replaced. Letters
    /// in names of programs and functions stay.
    pub fn plain(self, text: &str) -> String {
        if self.is_for_people {
            return text.to_owned();
        }
        let mut plain = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                'µ' => plain.push('u'),
                '−' | '–' | '─' | '·' => plain.push('-'),
                '│' => plain.push('|'),
                '…' => plain.push('~'),
                '±' => plain += "+-",
                '§' => plain += "section ",
                '“' | '”' => plain.push('"'),
                SPACE => plain.push(' '),
                other => plain.push(other),
            }
        }
        plain
    }

    /// The text with its numbers as on this screen, but with their spaces unbroken.
    pub(crate) fn digits(self, text: &str) -> String {
        if self.is_for_people {
            return text.to_owned();
        }
        let characters: Vec<char> = text.chars().collect();
        let is_digit = |at: Option<usize>| {
            at.and_then(|at| characters.get(at)).is_some_and(char::is_ascii_digit)
        };
        let shown = |(at, character): (usize, &char)| match character {
            &SPACE if is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)) => None,
            '−' if is_digit(Some(at + 1)) => Some('-'),
            other => Some(*other),
        };
        characters.iter().enumerate().filter_map(shown).collect()
    }
}

/// How lines of some columns are broken: at blanks alone, since names have hyphens, too
/// (`ryzen-7950x`) and are copied from what is shown. A longer word has a line of its own.
pub fn lines<'text>(width: usize) -> Options<'text> {
    Options::new(width)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .break_words(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{grouped, time};

    const TERMINAL: Screen = Screen { width: 20, is_coloured: false, is_for_people: true };

    #[test]
    fn programs_get_numbers_that_they_can_read() {
        let text = format!("{} and {}, −", grouped(-1_234_567.5, 1), time(1640.0));
        assert_eq!(TERMINAL.shown(&text), "−1 234 567.5 and 1 640 ns, −");
        assert_eq!(Screen::file(20).shown(&text), "-1234567.5 and 1640 ns, −");
    }

    #[test]
    fn long_lines_are_broken_at_blanks_for_people() {
        let text =
            "short\n  a line of more-than-twenty columns\n\n\x1b[1mbold of 20 columns.\x1b[0m\n";
        let broken = "short\n  a line of\n  more-than-twenty\n  columns\n\n\x1b[1mbold of 20 columns.\x1b[0m\n";
        assert_eq!(TERMINAL.fitted(text), broken);
        assert_eq!(Screen::file(20).fitted(text), text);
    }

    #[test]
    fn names_with_hyphens_stay_whole() {
        let text = "models: ryzen-7950x, ryzen-9700x, a-name-of-more-columns-than-the-line, i9";
        let lines =
            "models: ryzen-7950x,\nryzen-9700x,\na-name-of-more-columns-than-the-line,\ni9\n";
        assert_eq!(TERMINAL.fill(text), lines);
    }

    #[test]
    fn programs_get_ascii() {
        let text = "“a” ± 3 µs, −1 – 2 § 3, Größe…, _Z1µ";
        assert_eq!(Screen::file(20).plain(text), "\"a\" +- 3 us, -1 - 2 section  3, Größe~, _Z1u");
        assert_eq!(TERMINAL.plain(text), text);
    }

    #[test]
    fn numbers_stay_on_one_line() {
        let text = format!("it takes some {} in all", time(1640.0));
        assert_eq!(TERMINAL.fill(&text), "it takes some\n1 640 ns in all\n");
        assert_eq!(Screen::file(20).fill(&text), "it takes some\n1640 ns in all\n");
    }
}
