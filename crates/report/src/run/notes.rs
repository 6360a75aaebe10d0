//! What happens while a program is prepared and followed.

use dimmer_host::root::format_cpu_list;
use dimmer_launch::mechanism::How;
use dimmer_launch::note::{Note, WideFrom};
use dimmer_policy::narrowing::{Form, Reason};
use dimmer_processor::units::CpuId;

use super::narrow;
use crate::estimate::rounded;
use crate::number::{counted, percent, time};
use crate::restore;
use crate::screen::Screen;

/// The note as whole lines; `None` if there is nothing to say.
pub fn note(note: &Note, screen: Screen) -> Option<String> {
    Some(screen.shown(&text(note)?))
}

fn text(note: &Note) -> Option<String> {
    let line = match note {
        Note::NothingToMove { how, model } => {
            let what = if how.migrates || how.specialises { "code" } else { "leaf function" };
            format!(
                "{}: nothing to move: by {model}, no {what} of this program costs the code after it anything here.",
                name(*how)
            )
        }
        Note::NoCallMoves { how, why } => {
            let what = if how.moves_threads() { "thread" } else { "call" };
            format!("{}: no {what} moves: {why}.", name(*how))
        }
        Note::MayMove { how, functions, cpus, takes_ns } => format!(
            "{}: calls of {} may move to cpu {}; there and back takes {}.",
            name(*how),
            counted(*functions, "function"),
            format_cpu_list(cpus),
            time(*takes_ns),
        ),
        Note::Specialises { functions, cpus, takes_ns } => format!(
            "Specialise: threads that call {} go to cpu {}; there and back takes {}.",
            counted(*functions, "function"),
            format_cpu_list(cpus),
            time(*takes_ns),
        ),
        Note::WideCpus { from } => wide_cpus(from),
        Note::FollowsPhases { marks, slow, threshold, cpus, takes_ns } => format!(
            "Phases: at {slow} of {} (above {}) threads migrate to cpu {}, and come home at the others; there and back takes {}.",
            counted(*marks, "function"),
            rounded(*threshold),
            format_cpu_list(cpus),
            time(*takes_ns),
        ),
        Note::LearnsPhases { functions, keeps, cpus, takes_ns } => format!(
            "Phases: threads find out at which of {} they lose at most {} of their speed on cpu {}, and run those there; there and back takes {}.",
            counted(*functions, "function"),
            percent(1.0 - keeps),
            format_cpu_list(cpus),
            time(*takes_ns),
        ),
        Note::Server => "The policy server decides which of them do.".to_owned(),
        Note::Trials { mechanisms } => {
            let names: Vec<&str> = mechanisms.iter().map(|one| one.name()).collect();
            format!(
                "There is no policy server (dimmerd): trials find out what the program does the most under: {}.",
                names.join(", ")
            )
        }
        Note::ServerElsewhere { cpus } => format!(
            "It dedicates cpu {}, and --cpus has calls of this program go elsewhere.",
            format_cpu_list(cpus)
        ),
        Note::ServerMisfit { how, server, own } => {
            format!("{}: {}.", name(*how), misfit(server, own))
        }
        Note::Code { form, reason } => format!("This run has {}.", words(*form, *reason)?),
        Note::NoClocks { why } => format!(
            "boost: this machine takes no requests of clocks, so locks are only observed: {why}."
        ),
        Note::NoBreakEven => "boost: no lock is boosted, because the kernel does not report the \
                              base clock or how long a change of it takes; --model MODEL has it."
            .to_owned(),
        Note::NothingWider => {
            "Nothing to narrow to 256 bits: this processor shows nothing wider (see --width 128)."
                .to_owned()
        }
        Note::Dedicated { cpus, intruders } => {
            let stay = match intruders {
                0 => String::new(),
                number => format!(", but {} that cannot be moved", counted(*number, "thread")),
            };
            format!("Dedicated: no other program runs on cpu {}{stay}.", format_cpu_list(cpus))
        }
        Note::Narrowed(narrowed) => return Some(narrow::text(narrowed)),
        Note::Restored(report) => return Some(restore::text(report)),
        Note::NotUndone(report) if report.is_complete() => return Some(restore::text(report)),
        Note::NotUndone(report) => {
            restore::text(report)
                + "boost: not all clocks were given back; `dimmer restore`, as root, does that."
        }
        Note::CannotUndo { why } => format!(
            "boost: the clocks were not given back: {why}; `dimmer restore`, as root, does that."
        ),
        _ => return None,
    };
    Some(line + "\n")
}

/// The name in messages of how calls are moved.
pub(super) const fn name(how: How) -> &'static str {
    if how.specialises {
        return "Specialise";
    }
    if how.follows_phases {
        return "Phases";
    }
    match (how.delegates, how.migrates) {
        (true, true) => "Delegate, migrate",
        (true, false) => "Delegate",
        _ => "Migrate",
    }
}

/// Whose CPUs are wide, as a sentence.
fn wide_cpus(from: &WideFrom) -> String {
    match from {
        WideFrom::Server => {
            "The policy server (dimmerd) gives the CPUs, to all programs that ask for them.".to_owned()
        }
        WideFrom::NoServer => {
            "There is no policy server (dimmerd) that takes this program: the CPUs are the run's own choice.".to_owned()
        }
        WideFrom::ServerHasNone => {
            "The policy server (dimmerd) has no core to dedicate (`dimmer top` says why): the CPUs are the run's own choice.".to_owned()
        }
        WideFrom::ServerElsewhere { server, own } => format!(
            "Specialise: the policy server (dimmerd) dedicates cpu {}, where threads of this program cannot go: they go to cpu {}, \
             the run's own choice.",
            format_cpu_list(server),
            format_cpu_list(own)
        ),
    }
}

/// The message that no call can go to the server's cores, since the program was given others.
fn misfit(its: &[CpuId], own: &[CpuId]) -> String {
    if its.is_empty() {
        return "no call moves: the policy server has no core to dedicate (`dimmer top` says why)"
            .to_owned();
    }
    format!(
        "no call moves: the policy server dedicates cpu {}, and calls of this program can move to cpu {} alone, which it got at its start; \
         after a restart, they can move to the server's",
        format_cpu_list(its),
        format_cpu_list(own)
    )
}

/// A form with its reason, as the end of a sentence; `None` if there is no reason to change
/// anything.
pub(super) fn words(form: Form, reason: Reason) -> Option<String> {
    let words = match (form, reason) {
        (Form::Narrow, Reason::Measured(gain)) => {
            format!("narrower code, which took {} less CPU time", percent(gain))
        }
        (Form::Narrow, Reason::Forecast(least, most)) => {
            let [least, most] = [least, most].map(percent);
            format!(
                "narrower code, which by the model gives back {least} to {most} of the CPU time"
            )
        }
        (Form::Plain, Reason::Measured(gain)) => {
            format!("its own code, as narrower took {} more CPU time", percent(-gain))
        }
        (Form::Plain, Reason::Harmed) => {
            "its own code, as a run with narrower code failed".to_owned()
        }
        (Form::Plain, Reason::Check) => {
            "its own code for once, to see whether narrower is still better".to_owned()
        }
        _ => return None,
    };
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: &[u32]) -> Vec<CpuId> {
        numbers.iter().copied().map(CpuId::new).collect()
    }

    #[test]
    fn both_lists_are_told_where_they_do_not_fit() {
        let told = misfit(&cpus(&[6, 7]), &cpus(&[2]));
        assert!(told.contains("dedicates cpu 6-7,") && told.contains("to cpu 2 alone"), "{told}");
    }

    #[test]
    fn code_is_told_where_there_is_a_reason_for_it() {
        let said = |reason| text(&Note::Code { form: Form::Plain, reason });
        assert_eq!(said(Reason::Unknown), None);
        let harmed = said(Reason::Harmed).unwrap();
        assert_eq!(harmed, "This run has its own code, as a run with narrower code failed.\n");
    }
}
