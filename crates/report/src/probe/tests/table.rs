//! The table, wide and narrow, plain and colored.

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::Skipped;
use expect_test::{Expect, expect};

use super::fixtures::{Fixture, skylake, xeon_6, zen_5};
use crate::probe;
use crate::screen::Screen;

fn text(fixture: &Fixture, width: u16) -> String {
    probe::text(&fixture.findings, Screen { width, is_coloured: false, is_for_people: true })
}

#[track_caller]
fn check(fixture: &Fixture, width: u16, expected: Expect) {
    expected.assert_eq(&text(fixture, width));
}

#[test]
fn machine_with_brief_effects() {
    check(
        &xeon_6(),
        120,
        expect![[r#"
            Wide SIMD code slows this machine down.
            Break-even: 4 300 isolated bursts of 64 instructions a second cost 1 % of a core's time.
            Worst case: up to 6.1 % slower.
            Next: `dimmer observe -- YOUR-PROGRAM` shows which functions cause it.

            Episode: what one isolated burst costs the code after it
            kernel                         cost after               burst   nominal in  clock after  stall     throttled
            vfmadd231pd-512-unrolled       1 631 ns [1 581, 1 667]  800     2 612 ns    93.9 %       1 411 ns  1 484 ns
            tdpbf16ps-tile-unrolled        2 301 ns [2 251, 2 337]  64      2 902 ns    83.9 %       1 411 ns  1 484 ns
            vfmadd231pd-512-unrolled:1+    1 581 ns [1 531, 1 617]  12 800  2 582 ns    93.9 %       1 411 ns  1 484 ns
            add-scalar-unrolled:15
            vfmadd231pd-256-unrolled       absent, below 38 ns      800
            vpaddd-512-unrolled            absent, below 38 ns      800
            mulsd-scalar-unrolled          absent, below 38 ns      800

            Recurrence: bursts at regular gaps
            kernel                    slows by up to    burst  at a gap of  changes at
            vfmadd231pd-512-unrolled  6.1 % [6.0, 6.2]  800    158 µs       250 µs [242, 258]

            Throttle: from the first instruction to throttled execution
            kernel                    begins after    after instructions  throttled                at
            vfmadd231pd-512-unrolled  12 ns [12, 13]  34 [33, 35]         1 484 ns [1 476, 1 488]  25.0 % [24.6, 25.4]

            Instructions: how many it takes to cause an effect
            kernel                    half need    few suffice  most suffice
            vfmadd231pd-512-unrolled  60 [54, 67]  22 (5.0 %)   160 (95.0 %)

            Levels: settled clock by number of active CPUs
            kernel                    clock                     of scalar clock        active CPUs  per cycle
            vfmadd231pd-512-unrolled  3.610 GHz [3.606, 3.614]  94.0 % [93.9, 94.1]    1            1.998 [1.996, 2.000]
            vfmadd231pd-512-unrolled  3.600 GHz [3.596, 3.604]  93.8 % [93.7, 93.9]    2            1.998 [1.996, 2.000]
            vfmadd231pd-256-unrolled  3.840 GHz [3.836, 3.844]  100.0 % [99.9, 100.1]  1            1.998 [1.996, 2.000]
            vfmadd231pd-256-unrolled  3.840 GHz [3.836, 3.844]  100.0 % [99.9, 100.1]  2            1.998 [1.996, 2.000]

            Skipped
            tdpbssd-tile-unrolled  all modes  the kernel refuses tile data to this process

            5 200 repetitions in all; 91 windows left out after interrupts, 26 stolen; preempted 0 times.
            Meanwhile, and without the probe's doing, the clock stood between 3.26 and 3.58 GHz in nine cases of ten, and another
            hardware thread of the core was busy in 37.5 %.
        "#]],
    );
}

#[test]
fn narrow_terminal() {
    let text = text(&xeon_6(), 80);
    let widest =
        text.lines().take_while(|line| *line != "Skipped").map(|line| line.chars().count());
    assert!(widest.max().unwrap() <= 80, "{text}");
}

#[test]
fn names_are_broken_after_their_separators() {
    let mut fixture = xeon_6();
    fixture.findings.outcomes.truncate(1);
    fixture.findings.skipped.clear();
    fixture.findings.outcomes[0].kernel = "vfmadd231pd-512-unrolled-load".to_owned();
    check(
        &fixture,
        80,
        expect![[r#"
            Wide SIMD code slows this machine down.
            Break-even: 6 100 isolated bursts of 800 instructions a second cost 1 % of a
            core's time.
            Worst case: no slowdown was found.
            Next: `dimmer observe -- YOUR-PROGRAM` shows which functions cause it.

            Episode: what one isolated burst costs the code after it
            kernel              cost after      burst  nominal   clock   stall     throttled
                                                       in        after
            vfmadd231pd-512-    1 631 ns        800    2 612 ns  93.9 %  1 411 ns  1 484 ns
            unrolled-load       [1 581, 1 667]

            400 repetitions in all; 7 windows left out after interrupts, 2 stolen; preempted
            0 times.
            Meanwhile, and without the probe's doing, the clock stood between 3.26 and 3.58
            GHz in nine cases of ten, and another hardware thread of the core was busy in
            37.5 %.
        "#]],
    );
}

#[test]
fn skipped_kernels_share_a_row_if_they_share_a_reason() {
    let mut fixture = zen_5();
    fixture.findings.outcomes.clear();
    let skipped = |kernel: &str, mode, reason: &str| Skipped {
        mode,
        kernel: kernel.to_owned(),
        reason: reason.to_owned(),
        is_disturbed: false,
    };
    let unseen = "no effect of this kernel was seen by the other modes";
    let mut all: Vec<Skipped> = ["a", "b", "c", "d", "e"]
        .map(|kernel| skipped(kernel, Some(Mode::Recurrence), unseen))
        .into();
    all.insert(1, skipped("f", None, "the processor lacks avx512f"));
    all.push(skipped("g", Some(Mode::Instructions), unseen));
    fixture.findings.skipped = all;
    check(
        &fixture,
        100,
        expect![[r#"
            Nothing was measured.
            Next: `dimmer probe` without --kernel measures wide SIMD code.

            Skipped
            a, b and 3 more  recurrence    no effect of this kernel was seen by the other modes
            f                all modes     the processor lacks avx512f
            g                instructions  no effect of this kernel was seen by the other modes

            0 repetitions in all; 0 windows left out after interrupts, 0 stolen; preempted 0 times.
        "#]],
    );
}

/// What could not be measured has no effect only as far as others of its kernel show.
#[test]
fn wide_code_that_was_disturbed_is_not_found_to_cost_nothing() {
    let disturbed = |kernel: &str| Skipped {
        mode: Some(Mode::Episode),
        kernel: kernel.to_owned(),
        reason: "nearly every burst of 800 instructions was interrupted".to_owned(),
        is_disturbed: true,
    };
    let title =
        |fixture: &Fixture| text(fixture, 100).lines().next().unwrap_or_default().to_owned();
    let mut fixture = zen_5();
    let costs_nothing = title(&fixture);
    let known = fixture.findings.outcomes[0].kernel.clone();
    fixture.findings.skipped = vec![disturbed(&known), disturbed("mulsd-scalar-unrolled")];
    assert_eq!(title(&fixture), costs_nothing);
    fixture.findings.skipped.push(disturbed("vpaddd-256-unrolled"));
    let remains_open = "Whether wide SIMD code slows this machine down remains open.";
    assert_eq!(title(&fixture), remains_open);
    fixture.findings.outcomes.clear();
    assert_eq!(title(&fixture), remains_open);
    let next = "Next: probe again when the machine is idle, or without --quick.";
    assert!(text(&fixture, 100).contains(next));
}

#[test]
fn interrupted_run_with_lasting_effects() {
    check(
        &skylake(),
        100,
        expect![[r#"
            Wide SIMD code slows this machine down.
            Worst case: up to 53.9 % slower.
            Next: `dimmer observe -- YOUR-PROGRAM` shows which functions cause it.

            Downclock: from the first instruction to the settled clock
            kernel                    lower clock after     at clock  stall    throttled  at
            vfmadd231pd-512-unrolled  51.4 µs [51.1, 51.8]  65.00 %   10.4 µs  24.50 µs   26.0 %

            Upclock: from the end of a long burst back to the nominal clock
            kernel                     nominal in            burst    cost after  clock after  stall
            vfmadd231pd-512-unrolled   676 µs [675, 676]     200 000  118.0 µs    78.9 %       10.2 µs
            vfmadd231pd-256-dependent  absent, below 210 ns  800

            1 200 repetitions in all; 21 windows left out after interrupts, 6 stolen; preempted 0 times.
            Ended before all was done; what is above is complete.
        "#]],
    );
}

#[test]
fn machine_without_effects() {
    check(
        &zen_5(),
        100,
        expect![[r#"
            Wide SIMD code costs nothing on this machine.
            Measured: 3 kernels of wide SIMD code (heavy-256, light-512, heavy-512), and 1 of other code.
            Break-even: none found; even 320 000 isolated bursts of 800 instructions a second cost less than 1 %
            of a core's time.
            Worst case: no slowdown was found.
            Next: nothing to do: leave wide SIMD code as it is on this machine.

            Episode: what one isolated burst costs the code after it
            kernel                    cost after           burst
            vfmadd231pd-512-unrolled  absent, below 31 ns  800
            vfmadd231pd-256-unrolled  absent, below 27 ns  800
            vpaddd-512-unrolled       absent, below 30 ns  800
            a<b>&"c"                  absent, below 30 ns  800

            Recurrence: bursts at regular gaps
            kernel                    slows by up to       burst
            vfmadd231pd-512-unrolled  absent, below 44 ns  800

            Skipped
            tdpbf16ps-tile-unrolled and tdpbssd-tile-unrolled  all modes  the processor lacks amx_tile

            2 000 repetitions in all; 35 windows left out after interrupts, 10 stolen; preempted 0 times.
        "#]],
    );
}

#[test]
fn escape_sequences_only_where_asked_for() {
    let findings = xeon_6().findings;
    let text = |is_coloured| {
        probe::text(&findings, Screen { width: 100, is_coloured, is_for_people: true })
    };
    assert!(!text(false).contains('\u{1b}'));
    assert!(text(true).contains('\u{1b}'));
}
