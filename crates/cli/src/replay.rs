//! `dimmer daemon replay`: replays a recording of the policy server with its policy or another one.

use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use dimmer_host::program;
use dimmer_report::replay::Document;
use dimmer_watch::record;
use dimmer_watch::settings::Settings;

use crate::{args, bad_input, exit, output};

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
    let lines = BufReader::new(program::open(file).map_err(cannot)?);
    let replayed = record::replay(lines, settings.as_ref());
    let (begin, replayed) =
        replayed.map_err(|error| wrong(format!("{:#}", anyhow::Error::from(error))))?;
    Ok(Document::new(&begin, settings.as_ref(), &replayed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{}\n").unwrap();
        let said = replay(file.path(), None).unwrap_err().to_string();
        assert_eq!(said, format!("{}: line 1, column 2: expected a value", file.path().display()));
        assert!(replay(Path::new("/no/such"), None).unwrap_err().is::<crate::BadInput>());
    }
}
