//! Settled clocks as bars: a line for each kernel and number of active CPUs.

use dimmer_probe::outcome::{Detail, Levels};
use maud::{Markup, html};

use super::verdict::KernelFindings;
use crate::number::{grouped, interval, percent};

/// The section; empty if no levels were measured.
pub(super) fn section(kernels: &[KernelFindings<'_>]) -> Markup {
    let measured: Vec<(&str, Vec<&Levels>)> = kernels
        .iter()
        .map(|kernel| (kernel.name, levels_of(kernel)))
        .filter(|(_, levels)| !levels.is_empty())
        .collect();
    let all = measured.iter().flat_map(|(_, levels)| levels);
    let highest = all.map(|levels| levels.clock_ghz.median).fold(0.0, f64::max);
    if measured.is_empty() {
        return html! {};
    }
    html! {
        section {
            h2 { "Levels" }
            p {
                "The settled clock under lasting use, by number of CPUs that run the code. \
                 Percentages compare with scalar code on as many CPUs."
                span.bars { " Bars begin at zero." }
            }
            div.scroll tabindex="0" {
                table.levels {
                    thead {
                        tr {
                            th scope="col" { "CPUs" }
                            th scope="col" { "Clock, GHz" }
                            th.wide scope="col" {}
                            th scope="col" { "Of scalar" }
                            th scope="col" { "Per cycle" }
                        }
                    }
                    @for (kernel, levels) in &measured {
                        tbody {
                            tr { th.name scope="rowgroup" colspan="5" { code { (kernel) } } }
                            @for levels in levels { (row(levels, highest)) }
                        }
                    }
                }
            }
        }
    }
}

fn levels_of<'a>(kernel: &KernelFindings<'a>) -> Vec<&'a Levels> {
    let levels = kernel.outcomes.iter().filter_map(|outcome| match &outcome.detail {
        Detail::Levels(levels) => Some(levels),
        _ => None,
    });
    levels.collect()
}

fn row(levels: &Levels, highest: f64) -> Markup {
    let share = if highest > 0.0 { levels.clock_ghz.median / highest * 100.0 } else { 0.0 };
    html! {
        tr {
            td { (levels.active) }
            td {
                (grouped(levels.clock_ghz.median, 3))
                span.interval { (interval(&levels.clock_ghz, 3)) }
            }
            td.wide { span.bar style=(format!("width:{share:.1}%")) {} }
            td { (percent(levels.clock_ratio.median)) }
            td { (grouped(levels.instructions_per_cycle.median, 2)) }
        }
    }
}
