//! `dimmer machines`: records of machines, shown, compared, checked, and made.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use dimmer_fleet::database::Database;
use dimmer_fleet::evidence::{Making, STEPS};
use dimmer_fleet::{check, claims, privacy::Privacy};
use dimmer_host::{cpuid::Cpuid, interrupt::Interrupt, machine::Machine, root::Root};
use dimmer_report::machines::{self as report, Check, Compared, List, Show};

use crate::args::{Action, Machines};
use crate::{bad_input, exit, output, probe, progress};

pub(crate) fn run(root: &Root, arguments: &Machines) -> anyhow::Result<ExitCode> {
    let directory = arguments.database.as_deref();
    let privacy = Privacy::new(root.text("/proc/sys/kernel/hostname").unwrap_or_default().trim());
    let action = &arguments.action;
    let of = match action {
        Action::Record { host } => return record(directory, *host, privacy),
        Action::List(of) | Action::Show(of) | Action::Compare(of) | Action::Check(of) => of,
    };
    let (json, page) = (of.json.open()?, of.page.open()?);
    let database = directory.map_or_else(|| Ok(Database::builtin()), Database::read);
    let database =
        database.map_err(|error| bad_input(format!("{:#}", anyhow::Error::from(error))))?;
    let claims = directory.map_or_else(claims::builtin, claims::beside).map_err(bad_input)?;
    let records = database.named(&of.names).map_err(bad_input)?;
    if let Some(page) = page {
        let machine = Machine::read(&Root::live(), &Cpuid::instruction());
        let machine = probe::description(&machine, SystemTime::now());
        page.write(&report::page(&records, &claims, &machine)?)?;
    }
    let screen = output::screen();
    if matches!(action, Action::Check(_)) {
        let problems = check::of_database(&database, &records, &privacy);
        let check = Check::new(&records, &claims, problems);
        let text = output::printable(&check.text(output::is_verbose(), screen));
        output::show(json, &check, &text)?;
        return Ok(ExitCode::from(if check.is_refused() { exit::NO } else { 0 }));
    }
    for problem in &database.problems {
        eprintln!("warning: left out: {}", output::printable(&problem.to_string()));
    }
    match action {
        Action::Show(_) => {
            let show = Show::new(&records);
            output::show(json, &show, &output::printable(&show.text(screen)))?;
        }
        Action::Compare(_) => {
            let compared = Compared::new(&records);
            output::show(json, &compared, &output::printable(&compared.text(screen)))?;
        }
        _ => {
            let list = List::new(&records);
            output::show(json, &list, &output::printable(&list.text(screen)))?;
        }
    }
    Ok(ExitCode::from(if database.problems.is_empty() { 0 } else { exit::FAILED }))
}

fn record(
    directory: Option<&Path>,
    host: Option<u32>,
    privacy: Privacy,
) -> anyhow::Result<ExitCode> {
    let what = "record: --database DIR names the directory to write the record into";
    let directory = directory.ok_or_else(|| bad_input(what))?;
    output::directory(directory)?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let making = Making::begin(directory, &machine, host).map_err(bad_input)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let bar = progress::bar(STEPS.len() as u64);
    let evidence = making.run(&program, &privacy, &|| interrupt.is_set(), &mut |step| {
        bar.set_message(step.name);
        bar.inc(1);
    });
    bar.finish_and_clear();
    let evidence = evidence.context("cannot make the record")?;
    let target = making.end(&report::evidence(&evidence)?).context("cannot name the record")?;
    let database = Database::read(&target)?;
    let records = database.named(&[])?;
    let problems = check::of_database(&database, &records, &privacy);
    let check = Check::new(&records, &claims::builtin()?, problems);
    let text = Show::new(&records).text(output::screen()) + "\n";
    output::print(&output::printable(&(text + &check.text(false, output::screen()))))?;
    output::print(&format!("wrote {}\n", target.display()))?;
    Ok(output::end(&interrupt))
}
