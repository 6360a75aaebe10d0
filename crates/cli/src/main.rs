//! The `dimmer` command: arguments in, tables, JSON and reports out. Decides and measures nothing.
fn main() {}
