//! Places in text files, for error messages.

/// The line, from 1, that contains the byte at `offset`. An offset beyond the end is in the last
/// line.
#[must_use]
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_from_one_and_an_end_of_line_belongs_to_its_line() {
        let lines = |text: &str| [0, 1, 2, 3, 99].map(|offset| line_of(text, offset));
        assert_eq!(lines(""), [1; 5]);
        assert_eq!(lines("a\nb"), [1, 1, 2, 2, 2]);
        assert_eq!(lines("ä\n"), [1, 1, 1, 2, 2]);
    }
}
