//! Names of functions as programmers wrote them.

use cpp_demangle::DemangleOptions;

/// Longer names are cut in the middle (characters).
const LONGEST: usize = 48;

/// The name of a function as the programmer wrote it, in at most 48 characters, or its address if
/// it has no name.
#[must_use]
pub fn title(name: Option<&str>, address: u64) -> String {
    let Some(name) = name else { return format!("{address:#x}") };
    let plain = plain(name);
    let count = plain.chars().count();
    if count <= LONGEST {
        return plain;
    }
    let half = (LONGEST - 1) / 2;
    let begin: String = plain.chars().take(half).collect();
    let end: String = plain.chars().skip(count - half).collect();
    format!("{begin}…{end}")
}

/// The whole name of a function with this symbol, as the programmer wrote it: in C++ with the types
/// of the arguments.
#[must_use]
pub fn plain(symbol: &str) -> String {
    demangled(symbol, DemangleOptions::new())
}

/// Likewise, in C++ without the types of the arguments and of the result, as in
/// `ns::Class::method`. Overloaded functions have the same short name.
#[must_use]
pub fn short(symbol: &str) -> String {
    let options = DemangleOptions::new().no_params().no_return_type();
    let is_cpp = symbol.starts_with("_Z") && rustc_demangle::try_demangle(symbol).is_err();
    // A part that the compiler has split off is another function. The demangler leaves its suffix
    // out, together with the arguments.
    match symbol.split_once('.').filter(|_| is_cpp) {
        Some((function, part)) => format!("{}.{part}", demangled(function, options)),
        None => demangled(symbol, options),
    }
}

fn demangled(symbol: &str, options: DemangleOptions) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
        return format!("{rust:#}");
    }
    // The demangler also takes codes of types alone, so that the C function `f` would be `float`.
    let parsed = symbol.starts_with('_').then(|| cpp_demangle::Symbol::new(symbol).ok()).flatten();
    let name = parsed.and_then(|parsed| parsed.demangle_with_options(&options).ok());
    name.unwrap_or_else(|| symbol.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_were_written_and_cut_in_the_middle() {
        let check = |name: &str, expected: &str| assert_eq!(title(Some(name), 0), expected);
        check("plain_c", "plain_c");
        check("f", "f");
        check("_ZN2ns1fEi", "ns::f(int)");
        check("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write");
        let long = title(Some(&"ab".repeat(40)), 0);
        assert!(long.chars().count() < LONGEST && long.contains('…'), "{long}");
        assert_eq!(title(None, 0x1ca70), "0x1ca70");
    }

    #[test]
    fn short_names_have_no_arguments() {
        let check = |symbol: &str, expected: &str| assert_eq!(short(symbol), expected);
        check("plain_c", "plain_c");
        check("_ZN2ns1fEi", "ns::f");
        check("_ZNK2ns5Class6methodEdPKc", "ns::Class::method");
        check("_ZN2ns5ClassC2Ev", "ns::Class::Class");
        check("_ZN2ns1fEi.cold", "ns::f.cold");
        check("_Z3maxIiET_S0_S0_", "max<int>");
        check("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write");
        assert_eq!(plain("_Z3maxIiET_S0_S0_"), "int max<int>(int, int)");
    }
}
