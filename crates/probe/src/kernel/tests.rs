//! Names of kernels, and mixtures.

use dimmer_processor::class::InstructionClass;

use super::*;

#[test]
fn names_are_unique() {
    let mut names = names();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn mixture_spreads_its_parts() {
    let mixture = find("vfmadd231pd-512-unrolled:2+add-scalar-unrolled:4").unwrap();
    let part = find("vfmadd231pd-512-unrolled").unwrap();
    let wide: String = mixture
        .instructions
        .iter()
        .map(|code| if part.instructions.contains(code) { 'w' } else { '.' })
        .collect();
    assert_eq!(wide, ".w..w.");
    assert_eq!(mixture.class, InstructionClass::Heavy512);
    assert_eq!(mixture.needs, [Feature::Avx512f]);
}

#[test]
fn mixture_refuses_bad_shares() {
    for bad in
        ["add-scalar-unrolled+vmulpd-256-unrolled:2", "add-scalar-unrolled:0+vmulpd-256-unrolled:2"]
    {
        let error = find(bad).unwrap_err();
        assert!(matches!(error, KernelError::Share { .. }), "{error}");
    }
    assert!(matches!(find("nonsense:1+add-scalar-unrolled:1"), Err(KernelError::Unknown { .. })));
}

#[test]
fn unknown_kernel_lists_the_accepted_ones() {
    let message = find("nonsense").unwrap_err().to_string();
    assert!(message.contains("`nonsense`") && message.contains("vfmadd231pd-512-unrolled\n"));
}
