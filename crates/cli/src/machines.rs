//! `dimmer machines`: records of machines, shown, compared, checked, and made.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use dimmer_fleet::evidence::{Making, STEPS};
use dimmer_fleet::{check, database::Database, privacy::Privacy};
use dimmer_host::{cpuid::Cpuid, interrupt::Interrupt, machine::Machine, root::Root};
use dimmer_report::machines::{self as report, Shown, What};

use crate::args::{Action, Machines};
use crate::{bad_input, exit, output, probe, progress};

pub(crate) fn run(root: &Root, arguments: &Machines) -> anyhow::Result<ExitCode> {
    let directory = arguments.database.as_deref();
    let privacy = Privacy::new(root.text("/proc/sys/kernel/hostname").unwrap_or_default().trim());
    let (what, of) = match &arguments.action {
        Action::List(of) => (What::List, of),
        Action::Show(of) => (What::Show, of),
        Action::Compare(of) => (What::Compare, of),
        Action::Check(of) => (What::Check, of),
        Action::Record { label } => return record(directory, label.as_deref(), &privacy),
    };
    let (json, page) = (of.json.open()?, of.page.open()?);
    let wrong = |error| bad_input(format!("{:#}", anyhow::Error::from(error)));
    let (database, claims) = Database::open(directory).map_err(wrong)?;
    let records = database.named(&of.names).map_err(wrong)?;
    let problems = check::of_database(&database, &records, &privacy);
    let shown = Shown::new(what, &records, &claims, problems).map_err(bad_input)?;
    if let Some(page) = page {
        let machine = Machine::read(&Root::live(), &Cpuid::instruction());
        let machine = probe::description(&machine, std::time::SystemTime::now());
        page.write(&report::page(&records, &claims, &machine)?)?;
    }
    let text = shown.text(output::is_verbose(), output::screen());
    output::show(json, &shown, &text)?;
    let problems = database.problems.iter().filter(|_| what != What::Check);
    for problem in problems.clone() {
        eprintln!("warning: left out: {problem}");
    }
    let failed = if problems.count() > 0 { exit::FAILED } else { 0 };
    Ok(ExitCode::from(if shown.is_refused() { exit::NO } else { failed }))
}

fn record(dir: Option<&Path>, label: Option<&str>, privacy: &Privacy) -> anyhow::Result<ExitCode> {
    let dir = dir.ok_or_else(|| bad_input("record: expected --database DIR, to write into"))?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let making = Making::begin(dir, &machine, label).map_err(bad_input)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let bar = progress::bar(STEPS.len() as u64);
    let evidence = making.run(&program, privacy, &|| interrupt.is_set(), &mut |step| {
        bar.set_message(step.name);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let evidence = report::evidence(&evidence.context("cannot make the record")?)?;
    let target = making.end(&evidence).context("cannot write the record")?;
    let (database, claims) = Database::open(Some(&target))?;
    let records = database.named(&[])?;
    for what in [What::Show, What::Check] {
        let problems = check::of_database(&database, &records, privacy);
        let shown = Shown::new(what, &records, &claims, problems).map_err(bad_input)?;
        let text = shown.text(false, output::screen());
        output::print(&(text + "\n"))?;
    }
    output::print(&format!("wrote {}\n", target.display()))?;
    Ok(output::end(&interrupt))
}
