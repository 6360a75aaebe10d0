//! What narrows a program, as text.

use std::fmt::Write as _;

use dimmer_launch::note::Narrowed;
use dimmer_narrow::{CPUID_WIDTH, Width};

/// The settings that were made, and those that were not.
pub(super) fn text(narrowed: &Narrowed) -> String {
    let Narrowed { plan, width, cpuid } = narrowed;
    let mut text = format!("Narrow, to {width} bits:\n");
    // Writing to a string cannot fail.
    for setting in &plan.settings {
        let _ = writeln!(text, "  {}={}", setting.name, setting.value);
        let _ = writeln!(text, "      for {}", setting.switch.title);
        if !setting.switch.side_effect.is_empty() {
            let _ = writeln!(text, "      note: {}", setting.switch.side_effect);
        }
    }
    match cpuid {
        Ok(()) => {
            let hidden = match width {
                Width::Bits256 => "AVX-512 and AMX",
                Width::Bits128 => "AVX-512, AMX, AVX2 and AVX",
            };
            let _ = writeln!(text, "  {CPUID_WIDTH}={width}");
            let _ = writeln!(text, "      CPUID does not show {hidden}, to whatever else asks it");
        }
        Err(why) if why.is_empty() => {}
        Err(why) => {
            let _ = writeln!(text, "  not applied: features stay visible to CPUID: {why}");
        }
    }
    for kept in &plan.kept {
        let _ = writeln!(text, "  not applied: {}={} was set already,", kept.name, kept.value);
        let _ = writeln!(text, "      for {}", kept.switch.title);
    }
    // With a masked CPUID, these need no further settings.
    for advice in plan.advice.iter().filter(|_| cpuid.is_err()) {
        let (title, arguments) = (advice.switch.title, advice.arguments);
        let _ = writeln!(text, "  not applied: pass {arguments}, for {title}");
    }
    if text.lines().count() == 1 {
        text.push_str("  nothing to set for this program\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use dimmer_narrow::Program;

    use super::*;

    #[test]
    fn what_is_not_applied_is_said_with_the_reason() {
        let known = Program { names: vec!["x264".to_owned()], ..Program::default() };
        let all = dimmer_narrow::choose(&[]).unwrap();
        let plan = dimmer_narrow::plan(&known, Width::Bits128, &all.switches, |_| None);
        let (width, cpuid) = (Width::Bits128, Err("no such device".to_owned()));
        let told = text(&Narrowed { plan, width, cpuid });
        assert_eq!(
            told,
            "Narrow, to 128 bits:\n  not applied: features stay visible to CPUID: no such device\n  \
             not applied: pass --asm sse4.2, for x264\n"
        );
    }
}
