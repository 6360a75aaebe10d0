//! Tests of the raw series.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};

use super::fixtures::{Fixture, skylake, xeon_6};
use crate::probe;

fn series(fixture: &Fixture) -> BTreeMap<String, String> {
    let files = probe::series(&fixture.findings).unwrap().into_iter();
    files.map(|(name, bytes)| (name, String::from_utf8(bytes).unwrap())).collect()
}

/// Compares the first lines of a file.
#[track_caller]
fn check(files: &BTreeMap<String, String>, name: &str, expected: Expect) {
    let head: String = files[name].lines().take(3).map(|line| format!("{line}\n")).collect();
    expected.assert_eq(&head);
}

#[test]
fn one_file_per_mode_kernel_and_series() {
    let names: Vec<String> = series(&xeon_6()).into_keys().collect();
    expect![[r#"
        episode-mulsd-scalar-unrolled-curve.csv
        episode-mulsd-scalar-unrolled-samples.csv
        episode-tdpbf16ps-tile-unrolled-curve.csv
        episode-tdpbf16ps-tile-unrolled-samples.csv
        episode-vfmadd231pd-256-unrolled-curve.csv
        episode-vfmadd231pd-256-unrolled-samples.csv
        episode-vfmadd231pd-512-unrolled-curve.csv
        episode-vfmadd231pd-512-unrolled-samples.csv
        episode-vfmadd231pd-512-unrolled.1_add-scalar-unrolled.15-curve.csv
        episode-vfmadd231pd-512-unrolled.1_add-scalar-unrolled.15-samples.csv
        episode-vpaddd-512-unrolled-curve.csv
        episode-vpaddd-512-unrolled-samples.csv
        instructions-vfmadd231pd-512-unrolled-response.csv
        levels-vfmadd231pd-256-unrolled-levels.csv
        levels-vfmadd231pd-512-unrolled-levels.csv
        recurrence-vfmadd231pd-512-unrolled-gaps.csv
        throttle-vfmadd231pd-512-unrolled-samples.csv
        throttle-vfmadd231pd-512-unrolled-throughput.csv
    "#]]
    .assert_eq(&(names.join("\n") + "\n"));
}

#[test]
fn headers_carry_units_and_rows_their_kernel() {
    let mut files = series(&xeon_6());
    files.extend(series(&skylake()));
    let kernel = "vfmadd231pd-512-unrolled";
    check(
        &files,
        &format!("episode-{kernel}-samples.csv"),
        expect![[r#"
        kernel,cpu,threads,burst_instructions,observed_cpu,quantity,value
        vfmadd231pd-512-unrolled,1,1,800,1,burst_ns,1336.5890383638218
        vfmadd231pd-512-unrolled,1,1,800,1,burst_ns,1350.9085806284886
    "#]],
    );
    check(
        &files,
        &format!("episode-{kernel}-curve.csv"),
        expect![[r#"
            kernel,cpu,threads,burst_instructions,at_ns,clock_ratio,clock_ratio_low,clock_ratio_high,stall_share
            vfmadd231pd-512-unrolled,1,1,800,260,0.94,0.9369999999999999,0.943,0
            vfmadd231pd-512-unrolled,1,1,800,306.15469098283967,0.94,0.9369999999999999,0.943,0
        "#]],
    );
    check(
        &files,
        &format!("recurrence-{kernel}-gaps.csv"),
        expect![[r#"
            kernel,cpu,threads,burst_instructions,gap_us,slowdown_pct,slowdown_pct_low,slowdown_pct_high,stall_share,burst_ns,burst_ns_low,burst_ns_high,kept_share,kept_after_ms,clock_ratio
            vfmadd231pd-512-unrolled,1,1,800,1,6.1,6,6.199999999999999,0.01,412,403,421,1,3.2,0.94
            vfmadd231pd-512-unrolled,1,1,800,1.5848931924611136,6.1,6,6.199999999999999,0.01,412,403,421,1,3.2,0.94
        "#]],
    );
    check(
        &files,
        &format!("instructions-{kernel}-response.csv"),
        expect![[r#"
        kernel,cpu,threads,burst_instructions,instructions,effect_share,bursts
        vfmadd231pd-512-unrolled,1,1,,1,0.00000462960819625835,100
        vfmadd231pd-512-unrolled,1,1,,2,0.000037035665345727935,100
    "#]],
    );
    check(
        &files,
        &format!("throttle-{kernel}-throughput.csv"),
        expect![[r#"
        kernel,cpu,threads,burst_instructions,instructions,instructions_per_cycle
        vfmadd231pd-512-unrolled,1,1,,1,1.9
        vfmadd231pd-512-unrolled,1,1,,1.414213562373095,1.9
    "#]],
    );
    check(
        &files,
        &format!("downclock-{kernel}-steps.csv"),
        expect![[r#"
        kernel,cpu,threads,burst_instructions,at_ns,clock_ratio,instructions_per_cycle
        vfmadd231pd-512-unrolled,1,1,,0,1,0.42
        vfmadd231pd-512-unrolled,1,1,,24590,0.79,1
    "#]],
    );
    check(
        &files,
        &format!("levels-{kernel}-levels.csv"),
        expect![[r#"
        kernel,cpu,threads,burst_instructions,active,clock_ghz,clock_ghz_low,clock_ghz_high,clock_ratio,clock_ratio_low,clock_ratio_high,instructions_per_cycle,instructions_per_cycle_low,instructions_per_cycle_high
        vfmadd231pd-512-unrolled,1,1,,1,3.61,3.606,3.614,0.94,0.939,0.941,1.998,1.996,2
        vfmadd231pd-512-unrolled,1,2,,2,3.6,3.596,3.604,0.938,0.9369999999999999,0.939,1.998,1.996,2
    "#]],
    );
}

#[test]
fn every_sample_is_written() {
    let files = series(&xeon_6());
    let text = &files["episode-vfmadd231pd-512-unrolled-samples.csv"];
    // Seven quantities and one neighbor, 400 samples each, and the header.
    assert_eq!(text.lines().count(), 8 * 400 + 1);
}
