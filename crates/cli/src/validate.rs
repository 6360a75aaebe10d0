//! `dimmer sim validate`: compares a paper's results, or the behavior of this machine, with the
//! simulator's results.

mod here;

use std::process::ExitCode;
use std::sync::Once;
use std::time::{Instant, SystemTime};

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_report::validate;
use dimmer_validate::{Follower, Paper, Recreated, ValidateError, loops, turbo, ways, wins};
use indicatif::ProgressBar;

use crate::output::{self, Output};
use crate::{args, bad_input, probe, progress};

/// Shows which experiment is carried out, once the first seconds are over, until the user ends it.
struct Followed<'a> {
    interrupt: &'a Interrupt,
    spinner: ProgressBar,
    shown: Once,
    begun: Instant,
}

impl Follower for Followed<'_> {
    fn stops(&self) -> bool {
        if self.begun.elapsed() > progress::SHOWN_AFTER {
            self.shown.call_once(|| progress::show(&self.spinner));
            self.spinner.tick();
        }
        self.interrupt.is_set()
    }

    fn begins(&self, experiment: &str) {
        self.spinner.set_message(experiment.to_owned());
    }
}

pub(crate) fn run(arguments: &args::Validate) -> anyhow::Result<ExitCode> {
    if arguments.here {
        arguments.load.check(&Root::live())?;
        return here::run(arguments);
    }
    let begin = SystemTime::now();
    let json = arguments.json.open()?;
    let page = arguments.page.open()?;
    let markdown = arguments.markdown.as_deref().map(Output::open).transpose()?;
    let papers = match arguments.paper {
        None => Paper::ALL.to_vec(),
        Some(args::Paper::Avxfreq) => vec![Paper::Avxfreq],
        Some(args::Paper::Library) => vec![Paper::Library],
        Some(args::Paper::Turbo) => vec![Paper::Turbo],
        Some(args::Paper::Specialisation) => vec![Paper::Specialisation],
        Some(args::Paper::Migration) => vec![Paper::Migration],
    };
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let has = |paper| papers.contains(&paper) && !arguments.all;
    let (spinner, begun) = (progress::spinner(progress::AT), Instant::now());
    let followed = Followed { interrupt: &interrupt, spinner, shown: Once::new(), begun };
    let recreated = papers.iter().map(|paper| paper.recreate(&followed));
    let recreated: Vec<Recreated> =
        recreated.collect::<Result<_, ValidateError>>().map_err(bad_input)?;
    let loops = if has(Paper::Library) { loops::compare(&followed) } else { Ok(Vec::new()) };
    let turbo = if has(Paper::Turbo) { turbo::figures(&followed) } else { Ok(<_>::default()) };
    let ways = if has(Paper::Specialisation) { ways::compare(&followed) } else { Ok(Vec::new()) };
    let wins = if has(Paper::Migration) { wins::compare(&followed) } else { Ok(Vec::new()) };
    let loops = loops.map_err(bad_input)?;
    let turbo = turbo.map_err(bad_input)?;
    let (ways, wins) = (ways.map_err(bad_input)?, wins.map_err(bad_input)?);
    followed.spinner.finish_and_clear();
    let beside = validate::Beside { loops: &loops, turbo: &turbo, ways: &ways, wins: &wins };
    if ![&json, &page, &markdown].into_iter().flatten().any(Output::is_standard) {
        let screen = output::screen();
        if !arguments.all {
            let texts = recreated.iter().map(|one| validate::text(one, screen));
            output::print(&texts.collect::<Vec<_>>().join("\n"))?;
        }
        let tables = [
            has(Paper::Library).then(|| validate::loops_text(&loops, screen)),
            has(Paper::Turbo).then(|| validate::what_ifs_text(&turbo, screen)),
            has(Paper::Specialisation).then(|| validate::ways_text(&ways, screen)),
            has(Paper::Migration).then(|| validate::wins_text(&wins, screen)),
        ];
        tables.into_iter().flatten().try_for_each(|table| output::print(&table))?;
        if arguments.paper.is_none() {
            let above = if arguments.all { "" } else { "\n" };
            output::print(&format!("{above}{}", validate::summary_text(&recreated, screen)))?;
        }
    }
    if let Some(page) = page {
        let machine = Machine::read(&Root::live(), &Cpuid::instruction());
        page.write(&validate::page(&recreated, beside, &probe::description(&machine, begin))?)?;
    }
    if let Some(markdown) = markdown {
        markdown.write(&validate::markdown(&recreated, beside))?;
    }
    if let Some(json) = json {
        json.write_json(&validate::document(recreated, beside))?;
    }
    Ok(output::end(&interrupt))
}
