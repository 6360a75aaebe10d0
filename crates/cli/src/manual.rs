//! `dimmer completions` and `dimmer manual`: what is made from the definitions of the options.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::args::{Arguments, Completions, Manual};
use crate::output;

pub(crate) fn completions(arguments: &Completions) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "dimmer", &mut text);
    output::print(&String::from_utf8(text)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for each command, `dimmer-sim-run.1` for `dimmer sim run`.
pub(crate) fn pages(arguments: &Manual) -> anyhow::Result<ExitCode> {
    let directory = &arguments.directory;
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    write(&command, directory)
        .with_context(|| format!("cannot write man pages into {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those of the commands below it.
fn write(command: &Command, directory: &Path) -> std::io::Result<()> {
    let man = Man::new(command.clone().mut_args(|argument| argument.hide_short_help(false)))
        .manual("Dimmer");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let notes = command.get_after_long_help().map(ToString::to_string);
    page.write_all(notes_and_examples(&notes.unwrap_or_default()).as_bytes())?;
    if command.get_display_name() != Some("dimmer") {
        page.write_all(b".SH SEE ALSO\n.BR dimmer (1)\n")?;
    }
    std::fs::write(directory.join(man.get_filename()), page)?;
    let mut below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below.try_for_each(|below| write(below, directory))
}

/// The text behind the options in the language of man pages: examples keep their lines.
fn notes_and_examples(text: &str) -> String {
    let (notes, examples) = text.split_once("Examples:\n").unwrap_or((text, ""));
    let mut page = String::new();
    let lines = |text: &str| text.lines().map(|line| literal(line) + "\n").collect::<String>();
    if !notes.trim().is_empty() {
        page += &format!(".SH NOTES\n{}", lines(notes.trim()));
    }
    if !examples.is_empty() {
        page += &format!(".SH EXAMPLES\n.nf\n{}.fi\n", lines(examples));
    }
    page
}

/// A line that `man` shows as it is (groff_char(7)).
fn literal(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    // A dot at the start of a line begins a request.
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_examples() {
        let directory = tempfile::tempdir().unwrap();
        pages(&Manual { directory: directory.path().to_owned() }).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        let scan = page("dimmer-scan.1");
        assert!(scan.contains("\n.SH EXAMPLES\n.nf\n  dimmer scan /usr/lib"), "{scan}");
        assert!(scan.contains("\\-\\-fail\\-on"), "{scan}");
        assert!(page("dimmer-sim-model-list.1").contains(".SH SEE ALSO"));
        let first = page("dimmer.1");
        assert!(
            first.contains("Exit status: 0 done") && first.contains("dimmer\\-ps(1)"),
            "{first}"
        );
        assert!(!directory.path().join("dimmer-manual.1").exists());
    }

    #[test]
    fn lines_are_shown_as_they_are() {
        assert_eq!(literal(".5 a\\b - 'c'"), "\\&.5 a\\eb \\- \\(aqc\\(aq");
        assert_eq!(notes_and_examples(""), "");
        assert_eq!(
            notes_and_examples("A.\n\nExamples:\n  x\n"),
            ".SH NOTES\nA.\n.SH EXAMPLES\n.nf\n  x\n.fi\n"
        );
    }
}
