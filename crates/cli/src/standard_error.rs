//! Standard error that cannot be written (closed, full, beyond the limit of a file's size) costs
//! what was to be printed there, nothing more: a program that runs under `dimmer` ends as it does
//! without. So these macros replace those of the standard library, which panic.
//!
//! `eprint!` and `eprintln!` print notes, which `--quiet` suppresses; `error!` prints errors.

/// Prints a note, as [`std::eprint!`] does, unless `--quiet` is set.
macro_rules! eprint {
    ($($text:tt)*) => {
        if !crate::output::is_quiet() {
            crate::standard_error::print(format_args!($($text)*));
        }
    };
}

/// Prints a note and a line end, as [`std::eprintln!`] does, unless `--quiet` is set.
macro_rules! eprintln {
    ($($text:tt)*) => {
        eprint!("{}\n", format_args!($($text)*))
    };
}

/// Prints an error and a line end, also with `--quiet`.
macro_rules! error {
    ($($text:tt)*) => {
        crate::standard_error::print(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints a text, if that is possible.
pub(crate) fn print(text: std::fmt::Arguments<'_>) {
    let has_styles = crate::output::error_screen().is_coloured;
    let text = crate::output::printable(&text.to_string(), has_styles);
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}
