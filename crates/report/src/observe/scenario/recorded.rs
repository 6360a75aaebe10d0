//! The recorded steps themselves as a scenario, to compare a scenario with.

use std::fmt::Write as _;

use dimmer_observe::{Event, ThreadTrace};
use dimmer_processor::text::quoted;

use super::Written;
use super::text::codes;

/// Steps of all threads together.
const MOST_STEPS: usize = 200_000;

/// Parts of a longer trace, all over it, that are taken.
const PARTS: usize = 20;

pub(super) fn render(written: &Written<'_>) -> String {
    let threads: Vec<&ThreadTrace> =
        written.groups.iter().flat_map(|group| group.threads.iter().copied()).collect();
    let most = (MOST_STEPS / threads.len()).max(1);
    let mut of_threads = String::new();
    let mut end_ns: f64 = 0.0;
    for (number, trace) in threads.iter().enumerate() {
        let mut steps = String::new();
        let mut all_ns = 0.0;
        for event in parts(&trace.events, most) {
            // Writing to a string cannot fail, here and below.
            match *event {
                Event::Call { function, lasted_ns, .. } => {
                    let (name, _) = &written.kinds.all[written.kinds.of(trace, function)];
                    let instructions = written.instructions(lasted_ns);
                    let _ = writeln!(
                        steps,
                        "    {{ run = {}, instructions = {instructions:.1} }},",
                        quoted(name)
                    );
                    all_ns += lasted_ns;
                }
                Event::Gap { code_ns, wait_ns } => {
                    let instructions = written.instructions(code_ns);
                    let _ = writeln!(
                        steps,
                        "    {{ run = \"scalar\", instructions = {instructions:.1} }},"
                    );
                    if wait_ns > 1.0 {
                        let _ = writeln!(steps, "    {{ sleep_us = {:.3} }},", wait_ns / 1000.0);
                    }
                    all_ns += code_ns + wait_ns;
                }
                Event::Unseen | Event::Request => {}
            }
        }
        if !steps.is_empty() {
            end_ns = end_ns.max(all_ns);
            let _ = write!(of_threads, "\n[[thread]]\nname = \"{number}\"\nsteps = [\n{steps}]\n");
        }
    }
    let (cores, model) = (written.cores(), quoted(&written.traced.model));
    format!(
        "schema = \"dimmer/scenario/1\"\nname = \"recorded\"\nsource = \"recorded\"\nmodel = {model}\ncores = {cores}\n\
         end_us = {:.3}\n{}{of_threads}",
        (end_ns / 1000.0).max(1.0),
        codes(written),
    )
}

/// At most this many events, in parts from all over the trace.
fn parts(events: &[Event], most: usize) -> impl Iterator<Item = &Event> {
    let part =
        if events.len() > most { (events.len() / PARTS).max(1) } else { events.len().max(1) };
    let taken = if events.len() > most { (most / PARTS).max(1) } else { part };
    events.chunks(part).flat_map(move |part| part.iter().take(taken))
}
