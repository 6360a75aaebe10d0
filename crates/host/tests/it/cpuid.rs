//! Tables of registers that replace the CPUID instruction.

use dimmer_host::cpuid::{Cpuid, Feature};
use dimmer_host::microarchitecture::Microarchitecture;
use expect_test::{Expect, expect};

use crate::fixture::{Machine, machine};

#[track_caller]
fn refuses(table: &str, expected: &Expect) {
    let error = Cpuid::parse(table).expect_err("a refusal");
    expected.assert_eq(&error.to_string());
}

#[test]
fn refuses_malformed_lines_by_number() {
    let good = "# comment\nCPU 0:\n0x00000000 0x00: eax=0x1 ebx=0x0 ecx=0x0 edx=0x0\n";
    refuses(
        &format!("{good}nonsense"),
        &expect![
            "cpuid table, line 4: `nonsense`, expected `0x00000007 0x00: eax=0x.. ebx=0x.. ecx=0x.. edx=0x..` or `xcr0: 0x..`"
        ],
    );
    refuses(
        &format!("{good}\n0x7: eax=0x1"),
        &expect![
            "cpuid table, line 5: `0x7: eax=0x1`, expected `0x00000007 0x00: eax=0x.. ebx=0x.. ecx=0x.. edx=0x..` or `xcr0: 0x..`"
        ],
    );
    refuses(
        "0x1 0x0: eax=0x1 ebx=0x0 ecx=0x0 edx=0x100000000",
        &expect![
            "cpuid table, line 1: `0x1 0x0: eax=0x1 ebx=0x0 ecx=0x0 edx=0x100000000`, expected `0x00000007 0x00: eax=0x.. ebx=0x.. ecx=0x.. edx=0x..` or `xcr0: 0x..`"
        ],
    );
    refuses(
        "xcr0: 7",
        &expect![
            "cpuid table, line 1: `xcr0: 7`, expected `0x00000007 0x00: eax=0x.. ebx=0x.. ecx=0x.. edx=0x..` or `xcr0: 0x..`"
        ],
    );
}

#[test]
fn takes_the_first_of_several_processors() {
    let line = |eax| format!("0x00000000 0x00: eax={eax} ebx=0x0 ecx=0x0 edx=0x0\n");
    let cpuid = Cpuid::parse(&format!("CPU 0:\n{}CPU 1:\n{}", line("0x0"), line("0x7")));
    assert!(!cpuid.expect("a table").has(Feature::Avx2));
}

#[test]
fn does_not_use_what_the_operating_system_keeps_off() {
    let machine = machine("zen-5-vm");
    let table = machine.root.text("/cpuid.txt").expect("a table");
    let without_zmm = Cpuid::parse(&table.replace("xcr0: 0xe7", "xcr0: 0x7")).expect("a table");
    assert!(without_zmm.has(Feature::Avx512f));
    assert!(!without_zmm.usable(Feature::Avx512f));
    assert!(without_zmm.usable(Feature::Avx2));
}

#[test]
fn a_model_that_never_had_a_feature_is_another_processor_s() {
    let machine = machine("granite-rapids-vm");
    let table = machine.root.text("/cpuid.txt").expect("a table");
    let own = Cpuid::parse(&table).expect("a table").identity();
    assert_eq!(own.microarchitecture, Microarchitecture::GraniteRapids);
    assert_eq!(own.borrowed, None);
    let as_rocket_lake = table.replace("eax=0x000a06d1", "eax=0x000a0671");
    let identity = Cpuid::parse(&as_rocket_lake).expect("a table").identity();
    assert_eq!((identity.family, identity.model, identity.stepping), (6, 0xA7, 1));
    assert_eq!(identity.microarchitecture, Microarchitecture::Unknown);
    let named = Some((Microarchitecture::RocketLake, Feature::Avx512bf16));
    assert_eq!(identity.borrowed, named);
}

#[test]
fn ignores_registers_above_the_highest_leaf() {
    // For leaves that they lack, Intel processors return the registers of their highest basic leaf.
    let table = "0x0 0x0: eax=0x6 ebx=0x0 ecx=0x0 edx=0x0\n\
                 0x7 0x0: eax=0x0 ebx=0xffffffff ecx=0xffffffff edx=0xffffffff\nxcr0: 0xffffff";
    assert_eq!(Cpuid::parse(table).expect("a table").usable_features(), vec![]);
}

#[test]
fn knows_the_frequency_of_the_counter_by_three_sources() {
    let frequency = |name: &str| {
        let cpuid = Cpuid::of(&machine(name).root).expect("a table");
        cpuid.tsc_frequency().map(|(frequency, source)| format!("{frequency}, {}", source.name()))
    };
    let found = [
        frequency("granite-rapids-vm"),
        frequency("alder-lake-desktop"),
        frequency("skylake-sp-bare-metal"),
        frequency("zen-5-vm"),
    ];
    expect![[r#"
        [
            Some(
                "2700000 kHz, CPUID leaf 0x40000010 (hypervisor)",
            ),
            Some(
                "3609600 kHz, CPUID leaf 0x15",
            ),
            Some(
                "2100000 kHz, CPUID leaf 0x16 (base frequency, nominal)",
            ),
            None,
        ]
    "#]]
    .assert_debug_eq(&found);
}

#[test]
fn asks_the_real_processor_where_a_made_up_machine_has_none() {
    let cpuid = Cpuid::of(&Machine::new("").root).expect("the instruction");
    // Every x86-64 processor reports its vendor.
    assert_eq!(cpuid.identity(), Cpuid::instruction().identity());
    assert_eq!(cpuid.identity().vendor.len(), 12);
}
