//! `dimmer daemon replay`: replays a recording of the policy server with its policy or another one.

use std::io::{BufRead as _, Cursor, Read as _};
use std::path::Path;
use std::process::ExitCode;

use dimmer_report::replay::Document;
use dimmer_watch::record::{self, Line};
use dimmer_watch::settings::Settings;

use crate::{args, bad_input, input};
use crate::{exit, output};

pub(crate) fn run(arguments: &args::Replay) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let settings =
        arguments.config.as_deref().map(Settings::read).transpose().map_err(bad_input)?;
    let document = replay(&arguments.file, settings)?;
    output::show(json, &document, &document.text(output::screen()))?;
    Ok(if document.is_wrong() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

fn replay(file: &Path, settings: Option<Settings>) -> anyhow::Result<Document> {
    let wrong = |what: String| bad_input(format!("{}: {what}", file.display()));
    let cannot = |error| bad_input(format!("cannot read {}: {error}", file.display()));
    let mut lines = input::lines(file).map_err(cannot)?;
    let mut first = String::new();
    lines.read_line(&mut first).map_err(cannot)?;
    let replayed = record::replay(Cursor::new(&first).chain(lines), settings.as_ref());
    let replayed = replayed.map_err(|error| wrong(format!("{:#}", anyhow::Error::from(error))))?;
    match serde_json::from_str(&first) {
        Ok(Line::Begin(begin)) => Ok(Document::new(&begin, settings.as_ref(), &replayed)),
        _ => Err(wrong("line 1: a recording begins with `begin`".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{}\n").unwrap();
        let said = replay(file.path(), None).unwrap_err().to_string();
        assert!(said.contains(": line 1: "), "{said}");
        assert!(replay(Path::new("/no/such"), None).unwrap_err().is::<crate::BadInput>());
    }
}
