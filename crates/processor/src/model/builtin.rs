//! The models that come with Dimmer, part of the program.

/// Name and text of every file in `models/`, by name. A test compares the list with the folder.
pub const BUILTIN: &[(&str, &str)] = &[];

/// The text of the model of that name.
#[must_use]
pub fn builtin(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
