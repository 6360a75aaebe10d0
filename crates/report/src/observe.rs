//! The results of `dimmer observe`; `docs/observe-json.md` describes the document.

mod boost;
mod hand_off;
mod losses;
mod page;
pub mod scenario;
mod text;
mod textfile;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use dimmer_host::machine::Machine;
use dimmer_observe::{FunctionPlace, Observed, Tally, ThreadSeen, Times};
use dimmer_policy::cost::Running;
use dimmer_policy::phases::Choice;
use dimmer_probe::stats::Estimate;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use serde::Serialize;

use self::boost::Boost;
use crate::estimate::EstimateEntry;
use crate::machine::MachineDescription;
use crate::page::PageError;
use crate::scan::{self, LeadingFunction, ModelEntry, WideFunction};
use crate::screen::Screen;
use crate::timeline::Timeline;

/// Shares of all times for which quantiles are reported.
const QUANTILES: [(&str, f64); 5] =
    [("p5", 0.05), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95)];

/// The scan results for the observed files.
pub type Known = BTreeMap<PathBuf, KnownFile>;

/// The scan result for a file.
#[derive(Debug)]
pub struct KnownFile {
    /// The functions that were to be hooked, by address; empty if the file was not scanned because
    /// none of them was called.
    pub functions: Vec<WideFunction>,
    /// The numbers of these functions, if known without a scan.
    pub counts: Option<KnownCounts>,
}

/// Numbers of functions of a file.
#[derive(Clone, Copy, Debug)]
pub struct KnownCounts {
    /// Functions that were to be hooked.
    pub functions: usize,
    /// The number of them that were hooked.
    pub hooked: usize,
    /// The number of the hooked ones that others enter in the middle where no hook counts that.
    pub entered_unseen: usize,
}

impl KnownFile {
    /// The start of the function that has the entry `address`; `address` itself if the function is
    /// unknown.
    pub fn begin(&self, address: u64) -> u64 {
        at(&self.functions, address).map_or(address, |function| function.address)
    }

    /// The numbers of its functions, of which those with an entry in `entries` were hooked.
    fn counts(&self, entries: &BTreeSet<u64>) -> KnownCounts {
        if let Some(counts) = self.counts {
            return counts;
        }
        let all = &self.functions;
        let is_hooked = |function: &&WideFunction| {
            let leaders = function.leaders.iter().filter(|leader| !leader.is_among(all));
            let mut own = leaders.map(|leader| leader.address).chain([function.address]);
            own.any(|address| entries.contains(&address))
        };
        let hooked: Vec<&WideFunction> = all.iter().filter(is_hooked).collect();
        KnownCounts {
            functions: all.len(),
            hooked: hooked.len(),
            entered_unseen: hooked.iter().filter(|one| one.is_entered_unseen(all)).count(),
        }
    }
}

/// A run, and what was seen of it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// Whether its calls were counted by uprobes, which measure no durations, instead of hooked.
    pub is_counted: bool,
    /// The marks, if they were chosen. Only some calls passed their marks then, so it is not known
    /// what a hooked call costs.
    pub choice: Option<&'a Choice>,
    /// The exit status, if the program was started here.
    pub status: Option<ExitStatus>,
    /// What moving a call to another core and back takes on this machine, after each of some gaps
    /// without a call, the first of which is none (ns). Empty if it was not measured.
    pub hand_off: &'a [(f64, Estimate)],
    /// Whether the machine allows its clock to be governed.
    pub is_governable: bool,
    /// CPU time of the program and its children.
    pub on_cpu: Duration,
    /// How often the kernel switched from one of its threads to another thread.
    pub switches: u64,
    /// CPU time of the command that observed.
    pub own_cpu: Duration,
    /// What was observed.
    pub observed: &'a Observed,
    /// The scan results for the observed files.
    pub known: &'a Known,
    /// The classes whose functions were hooked.
    pub classes: &'a [InstructionClass],
    /// The machine on which it ran.
    pub machine: &'a Machine,
    /// The functions that were hooked instead, if the user has named any.
    pub functions: &'a [String],
    /// The model of the machine, and where it comes from.
    pub model: Option<(&'a Model, &'a str)>,
}

/// The document `dimmer/observe/1`: everything that was observed in one run.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    pub(crate) source: &'static str,
    pub(crate) command: Vec<String>,
    pub(crate) exit_status: Option<i32>,
    pub(crate) lasted_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    pub(crate) threads_left_out: usize,
    /// The share of CPU time spent in the hooks.
    pub(crate) hooks_share: Option<f64>,
    /// CPU time of this command itself.
    pub(crate) observer_cpu_s: f64,
    pub(crate) model: Option<ModelEntry>,
    /// Empty if functions were named instead.
    pub(crate) hooked_classes: Vec<String>,
    pub(crate) hooked_names: Vec<String>,
    /// The marks that were chosen, those with the largest share of the time first; `null` if none
    /// were to be.
    pub(crate) chosen_marks: Option<Vec<ChosenMark>>,
    pub(crate) files: Vec<File>,
    pub(crate) functions: Vec<Function>,
    pub(crate) by_thread: Vec<Thread>,
    pub(crate) unreadable: Vec<String>,
    /// What the code around the calls loses by the model; `null` if there is no model for it.
    pub(crate) lost: Option<Losses>,
    /// The model's statement about the most demanding class that was called, if that class requests
    /// no level.
    pub(crate) without_effect: Option<String>,
    /// The reason why there are no losses.
    pub(crate) lost_unknown: Option<String>,
    /// The clock right after calls over the clock right before calls that follow a long gap; `null`
    /// without enough of both.
    pub(crate) clock: Option<ClockCheck>,
    /// What moving a call to another core, and back, takes where calls come back to back.
    pub(crate) hand_off_ns: Option<EstimateEntry>,
    /// The same after gaps; `null` if it was not measured.
    pub(crate) hand_off: Option<hand_off::Entry>,
    /// Whether the machine allows its clock to be governed.
    pub(crate) is_governable: bool,
    /// The expected gain of each way to avoid the loss, the best first; empty without losses.
    pub(crate) ways: Vec<Outlook>,
    /// From which length on a call gains by a faster clock; `null` if the model lacks what requests
    /// of clocks cost, or no call was timed.
    pub(crate) boost: Option<Boost>,
}

/// A function that was chosen as a mark.
#[derive(Debug, Serialize)]
pub(crate) struct ChosenMark {
    /// As the option `--marks` takes it.
    pub(crate) name: String,
    /// How often it was passed.
    pub(crate) passed: u64,
    /// Its edges' share of the time of all edges.
    pub(crate) share: f64,
}

/// The clock next to some of the calls, measured by a chain of multiplications.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ClockCheck {
    /// The clock after calls over that before.
    pub(crate) ratio: f64,
    pub(crate) ci95: (f64, f64),
    /// Number of measurements.
    pub(crate) after: usize,
    pub(crate) before: usize,
}

/// Time lost, as a share of CPU time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Losses {
    pub(crate) share: f64,
    /// At a lower clock between calls that recur so soon that the level is kept.
    pub(crate) kept_share: f64,
    /// By holding, throttling and stalls around calls that are further apart.
    pub(crate) episodes_share: f64,
    /// Between long calls that recur, beyond both.
    pub(crate) between_long_share: f64,
    /// The longest gap during which the level is kept.
    pub(crate) kept_below_ns: f64,
    /// The longest gap in which calls can cost more than an isolated one.
    pub(crate) recovered_after_ns: f64,
}

/// The expected gain of a way to avoid the loss.
#[derive(Debug, Serialize)]
pub(crate) struct Outlook {
    pub(crate) way: &'static str,
    /// From and to, as shares of CPU time.
    pub(crate) gain: Option<(f64, f64)>,
}

/// A file that was loaded.
#[derive(Debug, Serialize)]
pub(crate) struct File {
    pub(crate) path: String,
    /// Functions with instructions of the hooked classes.
    pub(crate) wide_functions: usize,
    /// Functions that were hooked.
    pub(crate) hooked: usize,
    /// Hooked functions that others enter in the middle where no hook counts that.
    pub(crate) entered_unseen: usize,
    pub(crate) problem: Option<String>,
}

/// A function that was called.
#[derive(Debug, Serialize)]
pub(crate) struct Function {
    pub(crate) file: String,
    pub(crate) address: u64,
    pub(crate) name: Option<String>,
    pub(crate) name_source: Option<String>,
    /// The start of the function that it was hooked for, because it jumps into the middle of it;
    /// `null` if it was hooked in its own right.
    pub(crate) enters: Option<u64>,
    #[serde(skip)]
    pub(crate) title: String,
    pub(crate) class: Option<String>,
    pub(crate) level: Option<String>,
    pub(crate) threads: usize,
    pub(crate) calls: u64,
    pub(crate) calls_per_s: f64,
    /// Calls that were timed.
    pub(crate) timed: u64,
    pub(crate) lasted_ns: Option<Distribution>,
    /// From the end of a call to the thread's next call of any hooked function.
    pub(crate) gap_after_ns: Option<Distribution>,
    /// Time in all its calls, as a share of the program's CPU time.
    pub(crate) time_share: Option<f64>,
    /// Time that the code after its calls loses, as a share of the program's CPU time.
    pub(crate) lost_share: Option<f64>,
}

/// The calls of one thread.
#[derive(Debug, Serialize)]
pub(crate) struct Thread {
    process: u32,
    thread: u32,
    functions: Vec<ThreadFunction>,
}

/// A function that a thread called.
#[derive(Debug, Serialize)]
struct ThreadFunction {
    file: String,
    address: u64,
    calls: u64,
    timed: u64,
    /// Medians.
    lasted_ns: Option<f64>,
    gap_after_ns: Option<f64>,
}

/// The distribution of a duration.
#[derive(Debug, Serialize)]
pub(crate) struct Distribution {
    pub(crate) mean: f64,
    #[serde(flatten)]
    pub(crate) quantiles: BTreeMap<&'static str, f64>,
    /// The middle of each bucket, and its number of calls.
    pub(crate) histogram: Vec<(f64, f64)>,
}

impl Report {
    /// What was observed, with what it costs by the model.
    pub fn new(run: &Run<'_>) -> Self {
        let observed = run.observed;
        let known = |file: &Path| run.known.get(file).map_or(&[][..], |known| &known.functions);
        let files = observed.files.iter().map(|(path, problem)| {
            let entries = observed.hooked.get(path);
            let counts = match run.known.get(path) {
                Some(known) => known.counts(entries.unwrap_or(&BTreeSet::new())),
                None => {
                    let hooked = entries.map_or(0, BTreeSet::len);
                    KnownCounts { functions: 0, hooked, entered_unseen: 0 }
                }
            };
            File {
                path: path.to_string_lossy().into_owned(),
                wide_functions: counts.functions,
                hooked: counts.hooked,
                entered_unseen: counts.entered_unseen,
                problem: (!problem.is_empty()).then(|| problem.clone()),
            }
        });
        let stretches = observed.threads.iter().flat_map(|thread| thread.functions.values());
        let stretches = stretches.flat_map(Tally::stretches);
        let running = Running::new(stretches, run.on_cpu.as_secs_f64() * 1e9, run.switches);
        let mut functions: Vec<Function> = observed
            .functions()
            .iter()
            .map(|(place, tally)| {
                let known = known(&place.file);
                let own = at(known, place.address);
                let entered = if own.is_none() { entered_by(known, place.address) } else { None };
                let callers = observed.threads.iter();
                let threads = callers.filter(|thread| thread.functions.contains_key(place)).count();
                Function::new(place, (own, entered), tally, threads, (run, &running))
            })
            .collect();
        functions.sort_by(|a, b| {
            let time = |one: &Function| one.time_share.unwrap_or_default();
            time(b).total_cmp(&time(a)).then(b.calls.cmp(&a.calls))
        });
        let losses = losses::of(run, &running, &mut functions);
        let (lost, lost_unknown) = match losses {
            Ok(lost) => (Some(lost), None),
            Err(why) => (None, Some(why)),
        };
        let on_cpu = run.on_cpu.as_secs_f64();
        let without_effect = run.model.and_then(|(model, _)| without_effect(model, &functions));
        let classes = run.classes.iter().filter(|_| run.functions.is_empty());
        let is_counted = run.is_counted;
        let hooks: std::time::Duration = observed.threads.iter().map(|thread| thread.hooks).sum();
        Self {
            schema: "dimmer/observe/1",
            source: if is_counted { "uprobes" } else { "hooks" },
            command: run.command.to_vec(),
            exit_status: run.status.and_then(|status| status.code()),
            lasted_s: observed.lasted.as_secs_f64(),
            cpu_s: run.on_cpu.as_secs_f64(),
            processes: observed.processes,
            threads: observed.thread_count(),
            threads_left_out: observed.threads_left_out,
            hooks_share: (on_cpu > 0.0 && !is_counted && run.choice.is_none())
                .then(|| hooks.as_secs_f64() / on_cpu),
            observer_cpu_s: run.own_cpu.as_secs_f64(),
            model: run.model.map(|(model, from)| ModelEntry::new(model, from)),
            hooked_classes: classes.map(|class| class.name().to_owned()).collect(),
            hooked_names: run.functions.to_vec(),
            chosen_marks: run.choice.map(|choice| {
                let marks = choice.marks.iter();
                marks
                    .map(|one| ChosenMark {
                        name: one.mark.name().to_owned(),
                        passed: one.passed,
                        share: one.share,
                    })
                    .collect()
            }),
            files: files.collect(),
            ways: lost.map_or_else(Vec::new, |lost| losses::ways(lost, run, &functions)),
            boost: run.model.and_then(|(model, _)| {
                let lasted = functions.iter().filter_map(|function| function.lasted_ns.as_ref());
                Boost::new(model, lasted.map(|lasted| lasted.mean))
            }),
            functions,
            by_thread: observed.threads.iter().map(Thread::new).collect(),
            unreadable: observed.unreadable.clone(),
            clock: lost.and_then(|lost| losses::clock(run, lost.recovered_after_ns)),
            hand_off_ns: run.hand_off.first().map(|(_, took)| (*took).into()),
            hand_off: hand_off::Entry::new(run),
            is_governable: run.is_governable,
            without_effect,
            lost,
            lost_unknown,
        }
    }

    /// The observations as text.
    pub fn text(&self, screen: Screen) -> String {
        text::render(self, screen)
    }

    /// The observations as metrics for the textfile collector of Prometheus' node_exporter.
    pub fn textfile(&self, machine: &MachineDescription) -> String {
        textfile::render(self, &machine.time)
    }

    /// What the threads did over time, in Perfetto's format; `observed` is what this is the report
    /// of.
    #[must_use]
    pub fn timeline(&self, observed: &Observed) -> Timeline {
        Timeline::new(&self.command.join(" "), observed, |place| {
            let is_it = |function: &&Function| {
                function.address == place.address && *Path::new(&function.file) == *place.file
            };
            self.functions.iter().find(is_it).map(|function| function.title.clone())
        })
    }

    /// The observations as one HTML page with plots.
    ///
    /// # Errors
    /// [`PageError`]: a plot cannot be drawn.
    pub fn page(&self, machine: &MachineDescription) -> Result<String, PageError> {
        page::render(self, machine)
    }
}

/// The function in `known` that contains `address`; `known` is sorted by address.
fn at(known: &[WideFunction], address: u64) -> Option<&WideFunction> {
    let after = known.partition_point(|function| function.address <= address);
    let function = known.get(after.checked_sub(1)?)?;
    (address - function.address < function.size).then_some(function)
}

/// The most demanding function in `known` that the one at `address` jumps into the middle of, and
/// what is known of the latter.
fn entered_by(known: &[WideFunction], address: u64) -> Option<(&WideFunction, &LeadingFunction)> {
    let led = known.iter().filter_map(|function| {
        let leader = function.leaders.iter().find(|leader| leader.address == address)?;
        Some((function, leader))
    });
    led.max_by_key(|(function, _)| function.class.parse::<InstructionClass>().ok())
}

/// The source of the rule by which the most demanding class of these functions requests no level.
/// It contains the bound if that was measured.
fn without_effect(model: &Model, functions: &[Function]) -> Option<String> {
    let classes = functions.iter().filter_map(|function| function.class.as_deref()?.parse().ok());
    let most: InstructionClass = classes.max()?;
    let mut rules = model.rules.iter().filter(|rule| rule.class == most);
    let rule = rules.find(|rule| rule.level.value == LicenseLevel::new(0))?;
    Some(format!("{most}: {}", rule.level.source))
}

/// The most demanding class of a function that can run here; if none can, the most demanding of
/// all.
fn runnable(function: &WideFunction, machine: &Machine) -> String {
    let classes = function.instructions.keys().filter_map(|class| class.parse().ok());
    let most = classes.filter(|class: &InstructionClass| machine.runs(*class)).max();
    most.map_or_else(|| function.class.clone(), |class| class.name().to_owned())
}

impl Function {
    /// `own` is what is known of the function. Without that, `entered` is the function that it was
    /// hooked for, and what is known of it as that one's leader.
    fn new(
        place: &FunctionPlace,
        (own, entered): (Option<&WideFunction>, Option<(&WideFunction, &LeadingFunction)>),
        tally: &Tally,
        threads: usize,
        (run, running): (&Run<'_>, &Running),
    ) -> Self {
        let address = place.address;
        let seconds = run.observed.lasted.as_secs_f64();
        let on_cpu = run.on_cpu.as_secs_f64();
        let within = tally.lasted.mean().map(|_| running.of_all(tally.lasted.iter()) * 1e-9);
        let (entered, leader) = entered.unzip();
        let leader_name = leader.and_then(|leader| leader.name.clone());
        let title = match (own, entered) {
            (Some(own), _) => scan::title(own),
            (None, Some(entered)) => {
                let leader = dimmer_scan::title(leader_name.as_deref(), address);
                format!("{leader}, enters {}", scan::title(entered))
            }
            (None, None) => format!("{address:#x}"),
        };
        // The calls of a function that enters another one run that one's code.
        let runs = own.or(entered);
        Self {
            file: place.file.to_string_lossy().into_owned(),
            address,
            name_source: match &leader_name {
                Some(_) => Some("symbol".to_owned()),
                None => own.and_then(|own| own.name_source.clone()),
            },
            name: leader_name.or_else(|| own?.name.clone()),
            enters: entered.map(|entered| entered.address),
            title,
            class: runs.map(|function| runnable(function, run.machine)),
            level: runs.and_then(|function| function.level.clone()),
            threads,
            calls: tally.calls,
            calls_per_s: tally.calls as f64 / seconds,
            timed: tally.lasted.measured(),
            lasted_ns: Distribution::of(&tally.lasted),
            gap_after_ns: Distribution::of(&tally.gap_after),
            time_share: within.filter(|_| on_cpu > 0.0).map(|within| within / on_cpu),
            lost_share: None,
        }
    }
}

impl Thread {
    fn new(seen: &ThreadSeen) -> Self {
        let functions = seen.functions.iter().map(|(place, tally)| ThreadFunction {
            file: place.file.to_string_lossy().into_owned(),
            address: place.address,
            calls: tally.calls,
            timed: tally.lasted.measured(),
            lasted_ns: tally.lasted.quantile(0.5),
            gap_after_ns: tally.gap_after.quantile(0.5),
        });
        Self { process: seen.process, thread: seen.thread, functions: functions.collect() }
    }
}

impl Distribution {
    fn of(times: &Times) -> Option<Self> {
        let quantiles = QUANTILES.iter();
        let quantiles =
            quantiles.filter_map(|(name, share)| Some((*name, times.quantile(*share)?)));
        Some(Self {
            mean: times.mean()?,
            quantiles: quantiles.collect(),
            histogram: times.iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests;
