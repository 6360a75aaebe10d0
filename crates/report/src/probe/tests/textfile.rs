//! Tests of the metrics for node_exporter.

use expect_test::{Expect, expect};

use super::fixtures::{Fixture, skylake, xeon_6};
use crate::{MachineDescription, probe};

#[track_caller]
fn check(fixture: &Fixture, expected: Expect) {
    let time = "2026-03-01T11:34:56Z".to_owned();
    let machine = MachineDescription { time, ..fixture.machine.clone() };
    let text = probe::textfile(&fixture.findings, &machine);
    let samples: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    expected.assert_eq(&samples);
}

#[test]
fn each_class_has_a_series() {
    check(
        &xeon_6(),
        expect![[r#"
            dimmer_probe_info{brand="Intel(R) Xeon(R) 6985P-C",microarchitecture="Granite Rapids",microcode="0x1000405",hypervisor="KVM",kernel_release="6.12.9",version="0.1.0"} 1
            dimmer_probe_timestamp_seconds 1772364896
            dimmer_probe_effect{answer="yes"} 1
            dimmer_probe_effect{answer="no"} 0
            dimmer_probe_effect{answer="open"} 0
            dimmer_probe_effect{answer="not-measured"} 0
            dimmer_probe_slowdown_ratio 0.061
            dimmer_probe_burst_cost_seconds{class="heavy-512"} 0.00000163144
            dimmer_probe_burst_cost_seconds{class="tile"} 0.00000230144
            dimmer_probe_burst_cost_bound_seconds{class="scalar"} 0.000000038
            dimmer_probe_burst_cost_bound_seconds{class="heavy-256"} 0.000000038
            dimmer_probe_burst_cost_bound_seconds{class="light-512"} 0.000000038
            dimmer_probe_burst_cost_bound_seconds{class="heavy-512"} 0.00000173
            dimmer_probe_burst_cost_bound_seconds{class="tile"} 0.0000024
            dimmer_probe_active_cpus_clock_ratio{class="heavy-256",cpus="1"} 1
            dimmer_probe_active_cpus_clock_ratio{class="heavy-256",cpus="2"} 1
            dimmer_probe_active_cpus_clock_ratio{class="heavy-512",cpus="1"} 0.94
            dimmer_probe_active_cpus_clock_ratio{class="heavy-512",cpus="2"} 0.938
        "#]],
    );
    check(
        &skylake(),
        expect![[r#"
            dimmer_probe_info{brand="Intel(R) Core(TM) i9-7940X CPU @ 3.10GHz",microarchitecture="Skylake-SP",microcode="0x1000405",hypervisor="",kernel_release="6.12.9",version="0.1.0"} 1
            dimmer_probe_timestamp_seconds 1772364896
            dimmer_probe_effect{answer="yes"} 1
            dimmer_probe_effect{answer="no"} 0
            dimmer_probe_effect{answer="open"} 0
            dimmer_probe_effect{answer="not-measured"} 0
            dimmer_probe_slowdown_ratio 0.538525
            dimmer_probe_clock_ratio{class="heavy-512"} 0.649973
        "#]],
    );
}

#[test]
fn each_metric_has_one_help_and_type() {
    let Fixture { machine, findings } = xeon_6();
    let text = probe::textfile(&findings, &machine);
    let names = |begin: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(begin)?.split(' ').next());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (helps, types) = (names("# HELP "), names("# TYPE "));
    assert!(helps.len() > 5 && helps == types, "{text}");
    let unique: std::collections::BTreeSet<_> = types.iter().collect();
    assert_eq!(unique.len(), types.len(), "{text}");
}
