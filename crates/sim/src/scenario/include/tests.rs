//! Scenarios of several files.

use std::cell::RefCell;

use super::*;
use crate::scenario::Scenario;

const SCALAR: &str = "[[code]]\nname = \"scalar\"\nclass = \"scalar\"\nper_cycle = 1\n";
const HEAD: &str =
    "schema = \"dimmer/scenario/1\"\nname = \"n\"\nsource = \"s\"\nmodel = \"m\"\ncores = 2\n";

fn thread(name: &str, us: u32) -> String {
    format!("[[thread]]\nname = \"{name}\"\nsteps = [{{ run = \"scalar\", us = {us} }}]\n")
}

fn include(names: &str) -> String {
    format!("include = [{names}]\n")
}

/// Reads `dir/s.toml`; the files are those in its directory.
fn parse(text: &str, files: &[(&str, &str)]) -> Result<Scenario, ScenarioError> {
    Scenario::parse_with(Path::new("dir/s.toml"), text, &|path| {
        let named = |(name, _): &&(&str, &str)| Path::new("dir").join(name) == plain(path);
        let file = files.iter().find(named);
        file.map(|(_, text)| (*text).to_owned()).ok_or_else(|| format!("no {}", path.display()))
    })
}

#[track_caller]
fn refused(text: &str, files: &[(&str, &str)], expected: &str) {
    let error = parse(text, files).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

/// The names of the threads, and how long each runs (µs).
fn threads(scenario: &Scenario) -> Vec<(&str, u64)> {
    let us = |thread: &crate::scenario::Thread| match thread.steps.operations[0].step() {
        Some(crate::Step::Run(segment)) => match segment.extent {
            crate::Extent::Time(span) => span.ps() / 1_000_000,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    scenario.threads.iter().map(|thread| (thread.name.as_str(), us(thread))).collect()
}

#[test]
fn included_tables_come_first_and_are_replaced_in_their_place() {
    let other = [SCALAR, &thread("a", 1), &thread("b", 2)].concat();
    let more = thread("c", 3);
    let files = [("other.toml", other.as_str()), ("more.toml", &more)];
    let own = [thread("d", 4), thread("b", 5)].concat();
    let text = format!("{}{HEAD}{own}", include("\"other.toml\", \"more.toml\""));
    let scenario = parse(&text, &files).unwrap();
    assert_eq!(threads(&scenario), [("a", 1), ("b", 5), ("c", 3), ("d", 4)]);
    // Code is replaced, too, also for the threads of the file that it comes from.
    let code = SCALAR.replace("per_cycle = 1", "per_cycle = 2");
    let scenario = parse(&format!("{text}{code}"), &files).unwrap();
    let operation = &scenario.threads[0].steps.operations[0];
    assert!(matches!(operation.step(), Some(crate::Step::Run(segment)) if segment.ipc == 2.0));
}

#[test]
fn keys_of_the_including_file_win() {
    let whole = format!("{HEAD}end_us = 5\n{SCALAR}{}", thread("a", 1));
    let files = [("whole.toml", whole.as_str())];
    let schema = "schema = \"dimmer/scenario/1\"\n";
    let text = format!("{schema}{}name = \"other\"\n", include("\"whole.toml\""));
    let scenario = parse(&text, &files).unwrap();
    let found = (scenario.name.as_str(), scenario.source.as_str(), scenario.model.as_str());
    assert_eq!(found, ("other", "s", "m"));
    assert_eq!(scenario.end, Some(crate::Moment::START + crate::Picos::from_ps(5_000_000)));
    refused(&include("\"whole.toml\""), &files, "dir/s.toml: `schema` is missing: expected");
    let expected = "dir/s.toml: `cores` is missing: expected 1 to 4096";
    refused(&HEAD.replace("cores = 2\n", ""), &[], expected);
    let two = format!("{schema}{}", include("\"whole.toml\", \"b.toml\""));
    let files = [files[0], ("b.toml", "end_us = 6\n")];
    refused(
        &two,
        &files,
        "dir/s.toml: line 2: `include`: `end_us` stands in two files, expected one: \
         dir/whole.toml, line 6, and dir/b.toml, line 1",
    );
    assert!(parse(&format!("{two}end_us = 7\n"), &files).is_ok());
}

#[test]
fn a_name_in_two_included_files_is_an_error_with_both() {
    let text = format!("{}{HEAD}{}", include("\"a.toml\", \"b.toml\""), thread("t", 1));
    refused(
        &text,
        &[("a.toml", SCALAR), ("b.toml", &format!("\n{SCALAR}"))],
        "dir/s.toml: line 1: `include`: code `scalar` stands in two files, expected one: \
         dir/a.toml, line 1, and dir/b.toml, line 2",
    );
    let twice = [thread("t", 1), thread("t", 1)].concat();
    refused(
        &text,
        &[("a.toml", &twice), ("b.toml", "")],
        "dir/a.toml: line 4: thread `t` stands twice",
    );
    // The same table by two ways is one table.
    let (a, b) = (include("\"c.toml\""), include("\"./x/../c.toml\""));
    let files = [("a.toml", a.as_str()), ("b.toml", &b), ("c.toml", SCALAR)];
    assert!(parse(&text, &files).is_ok());
}

#[test]
fn errors_name_the_file_and_its_line() {
    let text = format!("{}{HEAD}{SCALAR}{}", include("\"a.toml\""), thread("t", 1));
    let wrong =
        |text_of_a: &str, expected: &str| refused(&text, &[("a.toml", text_of_a)], expected);
    wrong("\ncores = 0", "dir/a.toml: line 2: `cores` is 0, expected 1 to 4096");
    wrong("\n\n[[thread]]\nsteps = 3", "dir/a.toml: line 4: ");
    wrong(
        "schema = \"dimmer/scenario/2\"",
        "dir/a.toml: line 1: `schema` is \"dimmer/scenario/2\"",
    );
    wrong(
        &thread("t", 0).replace("[[thread]]", "\n[[thread]]").replace("\"t\"", "\"u\""),
        "dir/a.toml: line 2: thread `u`, step 1: `us` is 0",
    );
    wrong(
        &format!("name = \"x\"\n{}", thread("u", 1).replace("scalar", "x")),
        "dir/a.toml: line 2: thread `u`, step 1: no code `x`",
    );
    wrong(
        "[[distribution]]\nname = \"d\"\nquantiles = []",
        "dir/a.toml: line 3: distribution `d`: `quantiles` has 0",
    );
    wrong(
        &format!("[[code]]\nname = \"{}\"\nclass = \"scalar\"\nper_cycle = 1", "x".repeat(1001)),
        "line 2: `name` has 1001 bytes, expected at most 1000",
    );
    refused(&text, &[], "dir/s.toml: line 1: `include`: \"a.toml\": no dir/a.toml");
    let error = Scenario::parse(Path::new("s.toml"), &text).unwrap_err().to_string();
    assert_eq!(error, "s.toml: line 1: `include`: \"a.toml\": no other file is read here");
    refused("include = 3", &[], "dir/s.toml: line 1: `include`: found");
    refused("include = [\"a\", \"a\"]", &[("a", "")], "`include`: \"a\": it stands twice");
}

#[test]
fn includes_end() {
    let files = [("a.toml", include("\"b.toml\"")), ("b.toml", include("\"x/../s.toml\""))];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let expected = "dir/b.toml: line 1: `include`: \"x/../s.toml\": dir/s.toml includes dir/a.toml \
                    includes dir/b.toml includes dir/s.toml, expected no file that includes itself";
    refused(&include("\"a.toml\""), &files, expected);
    refused(&include("\"s.toml\""), &[], "dir/s.toml includes dir/s.toml");
    // Each file includes the next one.
    let chain = |length: usize| {
        let read = RefCell::new(0);
        let ran = Scenario::parse_with(
            Path::new("0"),
            &format!("{}{HEAD}{SCALAR}{}", include("\"1\""), thread("t", 1)),
            &|path| {
                *read.borrow_mut() += 1;
                let number: usize = path.to_str().unwrap().parse().unwrap();
                let is_last = number == length;
                Ok(if is_last { String::new() } else { include(&format!("\"{}\"", number + 1)) })
            },
        );
        (ran.map(|_| ()).map_err(|error| error.to_string()), read.into_inner())
    };
    assert_eq!(chain(8), (Ok(()), 8));
    let expected = "8: line 1: `include`: \"9\": files are nested deeper, expected at most 8 deep";
    assert_eq!(chain(usize::MAX), (Err(expected.to_owned()), 8));
    // One file includes many.
    let wide = |count: usize, text: &str| {
        let names: Vec<String> = (0..count).map(|number| format!("\"{number}\"")).collect();
        let own = format!("{}{HEAD}{SCALAR}{}", include(&names.join(", ")), thread("t", 1));
        Scenario::parse_with(Path::new("s"), &own, &|_| Ok(text.to_owned()))
    };
    assert!(wide(63, "").is_ok());
    let error = wide(64, "").unwrap_err().to_string();
    assert!(error.contains("\"63\": more files, expected at most 64 in all"), "{error}");
    let error = wide(20, &"#".repeat(1 << 20)).unwrap_err().to_string();
    assert!(
        error.contains("the files have more than 16777216 bytes, the most accepted"),
        "{error}"
    );
}
