//! The policy server's state in words.

use dimmer_host::root::format_cpu_list;
use dimmer_processor::units::{CpuId, KiloHertz};
use dimmer_watch::state::{ClockClient, ClockRequests, Cores, Mechanism, Policy, State};

use super::rows::{Region, Row, clean, is_same_server};
use dimmer_report::number::{SPACE, counted, grouped, percent, time};

/// Columns for the name of a setting that has its own line.
pub(super) const NAME: usize = 11;

/// The server.
pub(super) fn server(state: &State, socket: &str) -> String {
    let State { version, pid, up_s, .. } = state;
    format!("dimmerd {} at {}, process {pid}, up {}", clean(version), clean(socket), span(*up_s))
}

/// The decision loop.
pub(super) fn policy(policy: &Policy) -> String {
    let unit = if policy.unit == "client" { "program" } else { "region" };
    match policy.decides.as_str() {
        "trials" => {
            format!("trials: tries each {unit} on a dedicated core, and keeps what does better")
        }
        "thresholds" => format!(
            "thresholds: moves each {unit} above them, and lets them follow what does better"
        ),
        "auto" => {
            "auto: tries mechanisms for all programs at once, and keeps what does better".into()
        }
        other => clean(other),
    }
}

/// Which mechanism is in force and why; `None` if the loop compares none.
pub(super) fn mechanisms(policy: &Policy) -> Option<String> {
    let in_force = policy.mechanisms.iter().find(|of| of.is_in_force)?;
    let is_known = policy.mechanisms.iter().any(|of| of.gain_ratio.is_some());
    let why = match (in_force.is_chosen, is_known) {
        (true, true) => "did the most work so far",
        (true, false) => "nothing is known of others yet",
        (false, _) => "for a trial",
    };
    let shown = |of: &Mechanism| {
        let gain = of.gain_ratio?;
        let open = of.open_ratio.map(|open| format!(", within {:.1}", 100.0 * open));
        let (name, open) = (clean(&of.mechanism), open.unwrap_or_default());
        Some(format!("; {name} gains {:+.1} %{open}", 100.0 * gain))
    };
    let gains: String = policy.mechanisms.iter().filter_map(shown).collect();
    Some(format!("{} is in force: {why}{gains}", clean(&in_force.mechanism)))
}

/// The metric that decides what is better.
pub(super) fn better(policy: &Policy) -> String {
    let metric = match policy.metric.as_str() {
        "call-rate" => "more calls of regions a second",
        "region-time" => "less time in regions",
        other => other,
    };
    let mixing = if policy.mixing == "sum" { "added up" } else { "each program counts the same" };
    format!("what programs say, or else {}; {mixing}", clean(metric))
}

/// Which CPUs are dedicated.
pub(super) fn cores(cores: &Cores) -> String {
    if let Some(why) = &cores.no_core {
        return format!("none can be dedicated: {}", clean(why));
    }
    let (dedicated, free) = cores.may.split_at(cores.dedicated.min(cores.may.len()));
    let list = |cpus: &[u32]| {
        let mut cpus: Vec<CpuId> = cpus.iter().copied().map(CpuId::new).collect();
        cpus.sort_unstable();
        format!("cpu {}", format_cpu_list(&cpus))
    };
    match (dedicated, free) {
        ([], []) => "none can be dedicated".to_owned(),
        ([], free) => format!("none is dedicated; {} may be", list(free)),
        (dedicated, []) => format!("{} is dedicated, all that may be", list(dedicated)),
        (dedicated, free) => {
            format!("{} is dedicated; {} may be, too", list(dedicated), list(free))
        }
    }
}

/// What core specialisation in the kernel does, with the rate since `before`, if that is an earlier
/// state of the same server. `None` without its module.
pub(super) fn specialise(state: &State, before: Option<&State>) -> Option<String> {
    let now = state.specialise.as_ref()?;
    let rate = before.filter(|before| is_same_server(before, state)).and_then(|before| {
        let faults = now.faults.checked_sub(before.specialise.as_ref()?.faults)?;
        let seconds = state.up_s - before.up_s;
        (seconds > 0.0).then(|| short(faults as f64 / seconds))
    });
    Some(dimmer_report::specialise::line(now, rate))
}

/// The clocks of the dedicated CPUs, and of the others; `None` if the machine reports none.
pub(super) fn clocks(cores: &Cores, clocks: &[(CpuId, KiloHertz)]) -> Option<String> {
    let dedicated = &cores.may[..cores.dedicated.min(cores.may.len())];
    let is_dedicated = |cpu: &CpuId| dedicated.contains(&cpu.index());
    let ghz = |is_wanted: bool| {
        let wanted = clocks.iter().filter(move |(cpu, _)| is_dedicated(cpu) == is_wanted);
        let (least, most) = wanted.map(|(_, khz)| *khz).fold(None, |range, khz| {
            let (least, most): (KiloHertz, KiloHertz) = range.unwrap_or((khz, khz));
            Some((least.min(khz), most.max(khz)))
        })?;
        let told = |khz: KiloHertz| format!("{:.2}", khz.ghz());
        let (least, most) = (told(least), told(most));
        Some(if least == most { format!("{least} GHz") } else { format!("{least} to {most} GHz") })
    };
    match (ghz(true), ghz(false)) {
        (Some(own), Some(others)) => Some(format!("{own} dedicated, {others} others")),
        (one, other) => one.or(other),
    }
}

/// The time of a hand-over and the cost of calls, or the reason why they are unknown.
pub(super) fn prices(policy: &Policy) -> String {
    match (&policy.no_prices, policy.hand_over_ns, &policy.call_ns) {
        (Some(why), ..) => format!("not known, so trying must tell: {}", clean(why)),
        (None, Some(hand_over_ns), Some(call_ns)) => {
            let levels =
                call_ns.iter().zip(1..).map(|(ns, level)| format!("{} at L{level}", time(*ns)));
            let levels: Vec<String> = levels.collect();
            let costs = if levels.is_empty() {
                "the processor has no levels".to_owned()
            } else {
                format!("a call costs what comes after it at most {}", levels.join(", "))
            };
            format!("a hand-over takes {}; {costs}", time(hand_over_ns))
        }
        _ => "not known".to_owned(),
    }
}

/// The thresholds of the processor's levels, if the loop has any. If the levels are unknown, all
/// code counts as L1.
pub(super) fn thresholds(policy: &Policy) -> Option<String> {
    let levels = policy.call_ns.as_ref().map_or(1, |levels| levels.len().max(1));
    let thresholds = policy.thresholds.as_ref()?.iter().take(levels).zip(1..);
    let told = thresholds.map(|(threshold, level)| format!("L{level} {}", share(*threshold)));
    Some(format!("{} of a region's time at that level", told.collect::<Vec<_>>().join(", ")))
}

/// What the user should know about the clients: impossible reports, and hidden programs; `None` if
/// there are neither.
pub(super) fn strangers(state: &State) -> Option<String> {
    let liars: Vec<String> = state
        .clients
        .iter()
        .filter(|client| client.lies > 0)
        .map(|client| format!("{} {} ({} times)", clean(&client.name), client.pid, client.lies))
        .collect();
    let hidden = (state.hidden > 0)
        .then(|| format!("{} of other users not shown", counted(state.hidden, "program")));
    let liars = match liars.as_slice() {
        [] => None,
        [one] => Some(format!("{one} reports impossible values")),
        [one, rest @ ..] => Some(format!("{one} and {} more report impossible values", rest.len())),
    };
    let told: Vec<String> = hidden.into_iter().chain(liars).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

/// Where a region's calls run, and why.
pub(super) fn decision(region: &Region) -> String {
    let action = if region.is_moved { "moved" } else { "stays" };
    format!("{action}, {}", region.reason)
}

/// The meaning of a reason.
pub(super) fn meaning(reason: &str) -> &'static str {
    match reason {
        "no evidence" => "nothing is known of it yet",
        "scalar" => "it runs no wide SIMD code to speak of",
        "hand-over costs more" => {
            "a call cannot cost the code after it as much as handing it over takes"
        }
        "sparse" => "it is below the threshold of every level",
        "untried" => "its turn to be tried has not come",
        "tried" => "it is where it is to find out how that is",
        "not worth it" => "programs did no better with it moved",
        "expected gain" => {
            "programs should do better with it moved, by the processor's model; a trial without it will tell"
        }
        "worth it" => "programs did better with it moved",
        "asked for" => {
            "the program asks for cores (`dimmer run --specialise`), and its threads go there"
        }
        "not needed" => "the program asks for cores, and has not called it for a while",
        "no core" => "there is no core that could be dedicated",
        dense if dense.starts_with("dense at ") => "it is above the threshold of that level",
        _ => "",
    }
}

/// The details of a region.
pub(super) fn details(row: &Row) -> [String; 2] {
    let program = format!("{}, process {}, user {}", row.program, row.pid, row.user);
    let Some(region) = &row.region else {
        return [program, "It has entered no marked region yet.".to_owned()];
    };
    let Region { name, line, calls, moved, reason, .. } = region;
    let number = |number: u64| grouped(number as f64, 0);
    let first = format!(
        "{name}, line {line}, of {program}: {} calls since it began, {} of them moved",
        number(*calls),
        number(*moved)
    );
    let meaning = meaning(reason);
    let colon = if meaning.is_empty() { "" } else { ": " };
    [first, format!("{}{colon}{meaning}", decision(region))]
}

/// A share in percent, with more digits if it is small.
pub(super) fn share(part: f64) -> String {
    match part * 100.0 {
        pct if pct != 0.0 && pct < 0.1 => format!("{pct:.4}{SPACE}%"),
        _ => percent(part),
    }
}

/// A number with up to three digits: `17`, `812`, `19.4 k`.
pub(super) fn short(value: f64) -> String {
    let (scaled, sign) = match value {
        value if value < 999.5 => (value, ""),
        value if value < 999.5e3 => (value / 1e3, "k"),
        value if value < 999.5e6 => (value / 1e6, "M"),
        value => (value / 1e9, "G"),
    };
    match (sign, scaled) {
        ("", value) if value >= 9.95 || value == 0.0 => format!("{value:.0}"),
        ("", value) => format!("{value:.1}"),
        (sign, value) if value < 9.995 => format!("{value:.2} {sign}"),
        (sign, value) if value < 99.95 => format!("{value:.1} {sign}"),
        (sign, value) => format!("{value:.0} {sign}"),
    }
}

/// A duration: `12 s`, `3 min 12 s`, `2 d 4 h`.
pub(super) fn span(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let seconds = seconds as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// Maximum number of programs that [`requests`] names.
const NAMED: usize = 8;

/// What became of the clocks that programs request, by program, or why the server does not moderate
/// them.
pub(super) fn requests(state: &State) -> Option<String> {
    if let Some(why) = &state.no_clocks {
        return Some(format!("of clocks are not moderated: {}", clean(why)));
    }
    let program = |own: &ClockClient| {
        let ClockRequests { requested, granted, waiting, held_back, refused } = own.requests;
        let name = clean(&own.name);
        format!(
            "{name} {} of user {}: {granted} of {requested} granted, {waiting} wait, {held_back} \
             held back, {refused} refused",
            own.pid, own.uid
        )
    };
    let mut all: Vec<String> = state.clocks.iter().take(NAMED).map(program).collect();
    let others = state.clocks.len().saturating_sub(NAMED);
    if others > 0 {
        all.push(format!("{others} other programs"));
    }
    (!all.is_empty()).then(|| all.join("; "))
}
