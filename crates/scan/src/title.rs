//! Names of functions as programmers wrote them.

/// Longer names are cut in the middle (characters).
const LONGEST: usize = 48;

/// The name of a function as the programmer wrote it, in at most 48 characters, or its address if
/// it has no name.
#[must_use]
pub fn title(name: Option<&str>, address: u64) -> String {
    let Some(name) = name else { return format!("{address:#x}") };
    let plain = if let Ok(rust) = rustc_demangle::try_demangle(name) {
        format!("{rust:#}")
    } else {
        let symbol = cpp_demangle::Symbol::new(name).ok();
        symbol.and_then(|symbol| symbol.demangle().ok()).unwrap_or_else(|| name.to_owned())
    };
    let count = plain.chars().count();
    if count <= LONGEST {
        return plain;
    }
    let half = (LONGEST - 1) / 2;
    let begin: String = plain.chars().take(half).collect();
    let end: String = plain.chars().skip(count - half).collect();
    format!("{begin}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_were_written_and_cut_in_the_middle() {
        let check = |name: &str, expected: &str| assert_eq!(title(Some(name), 0), expected);
        check("plain_c", "plain_c");
        check("_ZN2ns1fEi", "ns::f(int)");
        check("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write");
        let long = title(Some(&"ab".repeat(40)), 0);
        assert!(long.chars().count() < LONGEST && long.contains('…'), "{long}");
        assert_eq!(title(None, 0x1ca70), "0x1ca70");
    }
}
