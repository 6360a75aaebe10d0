//! Standard error that cannot be written (closed, full, beyond the limit of a file's size) costs
//! what would have been told there, nothing else: a program that runs under `dimmer` ends as it
//! does without. So these take the place of the standard library's macros, which panic.

/// As [`std::eprint!`], without an error.
macro_rules! eprint {
    ($($told:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!($($told)*));
    }};
}

/// As [`std::eprintln!`], likewise.
macro_rules! eprintln {
    ($($told:tt)*) => {{
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("{}\n", format_args!($($told)*)),
        );
    }};
}
