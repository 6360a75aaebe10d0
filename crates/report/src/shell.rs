//! Command lines to copy into a shell.

/// A command line that a POSIX shell splits into these words again.
pub(crate) fn line(words: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    words.into_iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// A word of a command line, in quotation marks if it needs them.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "_.,:=@%+-/".contains(char);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    // Within quotation marks every character stands for itself, except their own.
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_words_that_need_quotation_marks_have_them() {
        let words = ["dimmer", "run", "--only=a,b", "--", "/bin/sh", "-c", "a b", "", "ns::f<int>"];
        assert_eq!(line(words), "dimmer run --only=a,b -- /bin/sh -c 'a b' '' 'ns::f<int>'");
    }

    #[test]
    fn a_shell_reads_the_same_words() {
        let words =
            ["", "it's", "'", "\"$HOME\"", "a\\b", "*", "~", "a;b&c|d", "`x`", "!x", "two\nlines"];
        let script = format!("printf '<%s>' {}", line(words));
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}
