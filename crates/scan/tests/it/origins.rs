//! Where functions are found, and the names that the file has.

use dimmer_scan::{Origin, Scan, scan};

use crate::elf::{CODE, Kind, Library, assemble};

/// Offset, end, origin and name of each function.
type Found<'a> = (u64, u64, Origin, Option<&'a str>);

#[track_caller]
fn check(library: &Library, expected: &[Found<'_>]) -> Scan {
    let scan = scan(&library.bytes()).expect("a sound file");
    let found: Vec<Found<'_>> = scan
        .functions
        .iter()
        .map(|function| {
            let (start, end) = (function.addresses.start - CODE, function.addresses.end - CODE);
            (start, end, function.origin, function.name.as_deref())
        })
        .collect();
    assert_eq!(found, expected);
    scan
}

/// `count` functions of sixteen bytes each: `nop`s, a `ret`, and `int3`s.
fn small(count: usize) -> Vec<u8> {
    let one = [&[0x90; 7][..], &[0xc3], &[0xcc; 8]].concat();
    one.repeat(count)
}

#[test]
fn symbols_give_functions_with_names() {
    let library = Library::new(small(2)).function("one", 0, 8).function("two", 16, 8);
    let one = (0, 8, Origin::Symbol, Some("one"));
    let scan = check(&library, &[one, (16, 24, Origin::Symbol, Some("two"))]);
    assert_eq!((scan.totals.symbols, scan.totals.code_bytes), (2, 32));
    assert_eq!(scan.totals.function_bytes, 16);
    assert_eq!(scan.at(CODE + 17).and_then(|found| found.name.as_deref()), Some("two"));
    assert_eq!(scan.at(CODE + 8), None);
}

#[test]
fn symbol_without_size_lasts_until_the_next() {
    let library = Library::new(small(2)).function("one", 0, 0).function("two", 16, 8);
    let one = (0, 16, Origin::Symbol, Some("one"));
    check(&library, &[one, (16, 24, Origin::Symbol, Some("two"))]);
}

#[test]
fn frames_give_functions_without_names() {
    let library = Library::new(small(2)).frame(0, 8).frame(16, 8).function("two", 16, 0);
    let two = (16, 24, Origin::Symbol, Some("two"));
    let scan = check(&library, &[(0, 8, Origin::Frame, None), two]);
    assert_eq!((scan.totals.frames, scan.totals.symbols), (1, 1));
}

#[test]
fn second_entry_into_a_function_takes_its_tail() {
    let library = Library::new(small(1)).function("one", 0, 8).function("late", 2, 3);
    let one = (0, 2, Origin::Symbol, Some("one"));
    check(&library, &[one, (2, 8, Origin::Symbol, Some("late"))]);
}

#[test]
fn relocated_pointers_seed() {
    let library = Library::new(small(3)).function("one", 0, 8).relative(0x9000, 16);
    let one = (0, 8, Origin::Symbol, Some("one"));
    let scan = check(&library, &[one, (16, 24 + 16, Origin::Seed, None)]);
    assert_eq!((scan.totals.seeds, scan.totals.rejected_seeds), (1, 0));
}

#[test]
fn packed_relocations_seed() {
    let library = Library::new(small(4)).packed(16).packed(32).packed(48);
    let expected = [16, 32, 48].map(|start| (start, start + 8, Origin::Seed, None));
    check(&library, &expected);
}

#[test]
fn calls_jumps_and_addresses_taken_seed() {
    let mut code = assemble(|a| {
        a.call(CODE + 0x40)?;
        // `lea rax, [rip + 0x44]` at 5, which is 0x50.
        a.db(&[0x48, 0x8d, 0x05, 0x44, 0, 0, 0])?;
        a.jmp(CODE + 0x60)
    });
    let known = code.len() as u64;
    code.resize(0x40, 0xcc);
    code.extend(small(3));
    let library = Library::new(code).function("one", 0, known);
    let mut expected = vec![(0, known, Origin::Symbol, Some("one"))];
    expected.extend([0x40, 0x50, 0x60].map(|start| (start, start + 8, Origin::Seed, None)));
    check(&library, &expected);
}

#[test]
fn code_found_by_a_seed_seeds_backwards_too() {
    let mut code = small(2);
    // Assembled as if it were at the start, 32 bytes lower than it is.
    code.extend(assemble(|a| {
        a.call(CODE - 32)?;
        a.ret()
    }));
    let library = Library::new(code).relative(0x9000, 32);
    let expected = [(0, 24, Origin::Seed, None), (32, 38, Origin::Seed, None)];
    check(&library, &expected);
}

#[test]
fn seed_with_undecodable_bytes_is_rejected() {
    let mut code = small(1);
    code.extend([0x06; 16]);
    let library = Library::new(code).function("one", 0, 8).relative(0x9000, 16);
    let scan = check(&library, &[(0, 8, Origin::Symbol, Some("one"))]);
    assert_eq!((scan.totals.seeds, scan.totals.rejected_seeds), (0, 1));
}

#[test]
fn seed_that_never_leaves_is_rejected() {
    let mut code = small(1);
    code.extend([0x50; 16]);
    let library = Library::new(code).function("one", 0, 8).relative(0x9000, 16);
    let scan = check(&library, &[(0, 8, Origin::Symbol, Some("one"))]);
    assert_eq!(scan.totals.rejected_seeds, 1);
}

#[test]
fn seed_that_goes_on_into_another_is_accepted() {
    let mut code = vec![0x50; 16];
    code.extend(small(1));
    let library = Library::new(code).relative(0x9000, 0).relative(0x9008, 16);
    check(&library, &[(0, 16, Origin::Seed, None), (16, 24, Origin::Seed, None)]);
}

#[test]
fn symbol_of_no_type_seeds_and_names() {
    let library = Library::new(small(1)).symbol("entry", 0, 0, Kind::NoType);
    check(&library, &[(0, 8, Origin::Seed, Some("entry"))]);
}

#[test]
fn nothing_leads_to_nothing() {
    check(&Library::new(small(1)), &[]);
}

#[test]
fn tells_build_id_and_soname() {
    let library = Library::new(small(1)).soname("libsmall.so.1").build_id(&[1, 2, 3, 4]);
    let scan = scan(&library.bytes()).expect("a sound file");
    assert_eq!(scan.soname.as_deref(), Some("libsmall.so.1"));
    assert_eq!(scan.build_id, Some(vec![1, 2, 3, 4]));
}
