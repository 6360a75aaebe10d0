//! A real recording of a small program with functions of known classes, whole and mangled.
//!
//! `tests/data/wide-example` was made of `wide-example.s` by `as` and `ld --build-id`, and recorded
//! by `perf record -N -e cpu-clock -F 400 -g` (perf 6.1) on a processor with AVX-512. The expected
//! numbers of samples are those of `perf report` of the same file.

use std::path::Path;

use dimmer_host::root::Root;
use dimmer_processor::class::InstructionClass;
use dimmer_profile::code::{Around, Function, Machine, Places};
use dimmer_profile::summary::{Summary, folded};
use dimmer_profile::{Profile, ProfileError, read};

const RECORDING: &[u8] = include_bytes!("../data/wide-example.perf.data");
const PROGRAM: &[u8] = include_bytes!("../data/wide-example");

/// A made-up machine that has the program, or another file in its place.
fn machine(program: Option<&[u8]>) -> (tempfile::TempDir, Machine) {
    let directory = tempfile::tempdir().unwrap();
    if let Some(program) = program {
        let place = directory.path().join("usr/local/bin");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("wide-example"), program).unwrap();
    }
    let root = Root::new(directory.path());
    let maps = Some(directory.path().to_owned());
    (directory, Machine { root, maps })
}

fn places(profile: &Profile, program: Option<&[u8]>) -> Places {
    let (_directory, machine) = machine(program);
    Places::of(profile, &machine, |_| {})
}

/// The name of a function.
fn name(function: &Function) -> String {
    match function {
        Function::OfFile { name, .. } | Function::Generated { name } => {
            name.clone().unwrap_or("?".to_owned())
        }
        Function::Kernel => "kernel".to_owned(),
        Function::Unknown => "unknown".to_owned(),
    }
}

/// Samples by function, with those in wide code.
fn by_function(profile: &Profile, places: &Places) -> Vec<(String, u64, Vec<Around>)> {
    let summary = Summary::of(profile, places);
    let sum = |(number, of): (&usize, &dimmer_profile::summary::FunctionSum)| {
        let around = of.sum.by.keys().copied().collect();
        (name(&places.functions[*number]), of.sum.all.samples, around)
    };
    let mut sums: Vec<_> = summary.functions.iter().map(sum).collect();
    sums.sort();
    sums
}

const HEAVY: Around = Around::Wide { class: InstructionClass::Heavy512, uses_zmm: true };

#[test]
fn samples_lie_in_the_functions_that_perf_reports() {
    let profile = read(RECORDING).unwrap();
    assert_eq!(profile.event.as_deref(), Some("cpu-clock"));
    assert_eq!(profile.programs, ["wide-example"]);
    assert_eq!((profile.lost, profile.cut_off.as_deref()), (0, None));
    let places = places(&profile, Some(PROGRAM));
    let expected = [
        ("kernel", 2, Around::Kernel),
        // Its wide instruction is far from the loop that is sampled.
        ("mixed", 75, Around::Narrow),
        ("multiply_512", 40, HEAVY),
        ("narrow", 72, Around::Narrow),
    ];
    let expected: Vec<_> =
        expected.map(|(name, samples, around)| (name.to_owned(), samples, vec![around])).into();
    assert_eq!(by_function(&profile, &places), expected);
    assert_eq!(places.failed.len(), 0);
    let summary = Summary::of(&profile, &places);
    assert_eq!(summary.total.wide() * 189, summary.total.all.events * 40);
    let callers: Vec<(String, Vec<String>)> = summary
        .functions
        .iter()
        .map(|(number, of)| {
            let callers = of.callers.keys().map(|caller| name(&places.functions[*caller]));
            (name(&places.functions[*number]), callers.collect())
        })
        .collect();
    assert!(
        callers.contains(&("multiply_512".to_owned(), vec!["heavy".to_owned()])),
        "{callers:?}"
    );
    let mixed = places.functions.iter().position(|function| name(function) == "mixed").unwrap();
    assert_eq!(places.classes[&mixed], InstructionClass::Light256);
}

#[test]
fn stacks_are_folded_with_a_frame_for_the_class() {
    let profile = read(RECORDING).unwrap();
    let places = places(&profile, Some(PROGRAM));
    let text = folded(&profile, &places, name, |around| match around {
        Around::Wide { class, .. } => Some(class.name().to_owned()),
        _ => None,
    });
    let line = text.lines().find(|line| line.contains("multiply_512")).unwrap();
    assert!(line.ends_with(";_start;heavy;multiply_512;[heavy-512] 40"), "{text}");
    let samples = text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(samples.sum::<u64>(), 189);
}

#[test]
fn code_of_another_build_is_not_taken_for_the_one_that_ran() {
    let profile = read(RECORDING).unwrap();
    let why = |program: Option<&[u8]>| {
        let places = places(&profile, program);
        let sums = by_function(&profile, &places);
        let known = sums.iter().filter(|(.., around)| around.contains(&HEAVY)).count();
        assert_eq!(known, 0, "{sums:?}");
        places.failed.into_values().next().unwrap()
    };
    let mut other = PROGRAM.to_vec();
    let id = [0x71, 0x81, 0x3c, 0xeb];
    let at = other.windows(4).position(|bytes| bytes == id).unwrap();
    other[at] = 0x72;
    let told = why(Some(&other));
    assert!(
        told.contains("its build id is 72813ceb") && told.contains("profile 71813ceb"),
        "{told}"
    );
    assert!(why(None).contains("wide-example"));
    assert!(why(Some(b"no program")).contains("not an ELF file"));
}

/// The same recording as `perf record -o -` writes it.
fn piped() -> Vec<u8> {
    let number = |at: usize| {
        usize::try_from(u64::from_le_bytes(RECORDING[at..at + 8].try_into().unwrap())).unwrap()
    };
    let (length, events_at) = (number(16), number(24));
    let (data_at, data_length) = (number(40), number(48));
    let attributes = &RECORDING[events_at..events_at + length - 16];
    let mut bytes = [&b"PERFILE2"[..], &16_u64.to_le_bytes()].concat();
    let size = u16::try_from(8 + attributes.len()).unwrap();
    bytes.extend([&64_u32.to_le_bytes()[..], &[0, 0], &size.to_le_bytes(), attributes].concat());
    bytes.extend(&RECORDING[data_at..data_at + data_length]);
    bytes
}

#[test]
fn a_recording_from_a_pipe_has_the_same_stacks() {
    let profile = read(&piped()).unwrap();
    let whole = read(RECORDING).unwrap();
    assert_eq!(profile.stacks, whole.stacks);
}

#[test]
fn a_recording_that_was_cut_off_has_the_samples_before_the_cut() {
    let all =
        |profile: &Profile| -> u64 { profile.stacks.values().map(|weight| weight.samples).sum() };
    let profile = read(&RECORDING[..RECORDING.len() / 2]).unwrap();
    let half = all(&profile);
    assert!(half > 40 && half < 150, "{half}");
    assert!(profile.cut_off.unwrap().contains("missing"));
    // `perf record` writes the length of the data at its end.
    let mut open = RECORDING.to_vec();
    open[48..56].fill(0);
    let profile = read(&open[..open.len() / 2]).unwrap();
    assert_eq!(all(&profile), half);
    assert!(profile.cut_off.unwrap().contains("within a record"));
}

#[test]
fn every_cut_and_any_changed_bytes_give_a_profile_or_an_error() {
    let (_directory, machine) = machine(Some(PROGRAM));
    let look = |bytes: &[u8]| match read(bytes) {
        Ok(profile) => Some(Places::of(&profile, &machine, |_| {}).functions.len()),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    };
    for whole in [RECORDING, &piped()] {
        for end in (0..whole.len()).step_by(37) {
            look(&whole[..end]);
        }
    }
    let mut random = fastrand::Rng::with_seed(28);
    let mut read_anyway = 0;
    for turn in 0..600 {
        let mut bytes = if turn % 4 == 0 { piped() } else { RECORDING.to_vec() };
        for _ in 0..random.usize(1..20) {
            // Half of the changes are in the headers.
            let most = if random.bool() { 400 } else { bytes.len() };
            let at = random.usize(8..most);
            let any = random.u8(..);
            bytes[at] = random.choice([0, 1, 0x7f, 0x80, 0xff, any]).unwrap();
        }
        read_anyway += usize::from(look(&bytes).is_some());
    }
    // Changes that matter to nothing are read; if none was, nothing behind the header was tried.
    assert!(read_anyway > 20, "{read_anyway}");
}

#[test]
fn huge_lengths_in_the_header_are_refused_or_cut() {
    // Header, events, data and the features behind them.
    for at in (8..104).step_by(8) {
        for value in [u64::MAX, u64::MAX / 2, 1 << 40, 0] {
            let mut bytes = RECORDING.to_vec();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let _ = read(&bytes);
        }
    }
}

#[test]
fn what_is_not_read_says_what_to_do() {
    let refused = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(refused(b"2ELIFREP........").contains("big-endian"));
    assert!(refused(b"PERFILE2").contains("damaged at byte 8"));
    assert!(matches!(read(b""), Err(ProfileError::Empty(None) | ProfileError::Unknown)));
    // A compressed record instead of the first one.
    let mut bytes = RECORDING.to_vec();
    let data = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap();
    bytes[data..data + 4].copy_from_slice(&81_u32.to_le_bytes());
    assert!(refused(&bytes).contains("perf script"), "{}", refused(&bytes));
}

#[test]
fn a_text_by_names_and_generated_code_by_maps() {
    let text = "\
wide-example 9 1.0: 250 cpu-clock:
\t401037 multiply_512+0xa (/usr/local/bin/wide-example)
\t401028 heavy+0x9 (/usr/local/bin/wide-example)

java 7 2.0: 250 cpu-clock:
\t7f0010 LMain;run+0x10 (/tmp/perf-7.map)

node 8 2.0: 250 cpu-clock:
\t7f0010 [unknown] ([unknown])

";
    let profile = read(text.as_bytes()).unwrap();
    let (directory, machine) = machine(Some(PROGRAM));
    std::fs::write(directory.path().join("perf-8.map"), "7f0000 20 JS:*f\n").unwrap();
    let places = Places::of(&profile, &machine, |_| {});
    let found = by_function(&profile, &places);
    let expected =
        [("JS:*f", Around::Unknown), ("LMain;run", Around::Unknown), ("multiply_512", HEAVY)];
    let expected: Vec<_> = expected.map(|(name, around)| (name.to_owned(), 1, vec![around])).into();
    assert_eq!(found, expected);
}

/// The fixture is what its source says.
#[test]
fn the_program_has_the_functions_of_its_source() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/wide-example.s");
    let source = std::fs::read_to_string(source).unwrap();
    let scan = dimmer_scan::scan(PROGRAM).unwrap();
    for function in &scan.functions {
        let name = function.name.as_deref().unwrap();
        assert!(source.contains(&format!("{name}:\n")), "{name}");
    }
    assert_eq!(scan.functions.len(), 5);
}

/// What gzip makes of these bytes.
fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packer, bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn packed_profiles_are_unpacked_up_to_a_limit() {
    let whole = packed(RECORDING);
    assert_eq!(read(&whole), read(RECORDING));
    let said = read(&whole[..whole.len() / 2]).unwrap_err().to_string();
    assert!(said.starts_with("damaged: byte ") && said.contains("cannot be unpacked"), "{said}");
    let bomb = packed(&vec![0; (1 << 28) + 1]);
    assert!(bomb.len() < 4 << 20);
    let said = read(&bomb).unwrap_err().to_string();
    assert!(said.contains("longer than 268435456 bytes, the most accepted"), "{said}");
}

/// `vaddpd zmm0, zmm0, zmm0`, `ret`
const WIDE: [u8; 7] = [0x62, 0xf1, 0xfd, 0x48, 0x58, 0xc0, 0xc3];

/// A jitdump of one function.
fn jitdump(name: &str, code: &[u8]) -> Vec<u8> {
    let numbers = [0x4a69_5444_u32, 1, 40, 62, 0, 7].map(u32::to_le_bytes).concat();
    let load = [0, 0x1000, 0x1000, code.len() as u64, 0].map(u64::to_le_bytes).concat();
    let load = [&load[..], name.as_bytes(), &[0], code].concat();
    let length = u32::try_from(16 + load.len()).unwrap().to_le_bytes();
    [&numbers[..], &[0; 16], &0_u32.to_le_bytes(), &length, &[0; 8], &load].concat()
}

/// Two samples of a process in generated code, after these lines.
fn generated(before: &str) -> Profile {
    let text = "java 7 1.0: 1 cycles:\n\t1002 [unknown] ([unknown])\n\njava 7 2.0: 1 cycles:\n\t\
                3000 [unknown] ([unknown])\n";
    read([before, text].concat().as_bytes()).unwrap()
}

#[test]
fn generated_code_is_looked_at_where_a_jitdump_has_it() {
    let (directory, machine) = machine(None);
    let map = directory.path().join("perf-7.map");
    std::fs::write(map, "1000 10 by-map\n3000 10 only-map\n").unwrap();
    let dump = directory.path().join("jit-7.dump");
    std::fs::write(&dump, jitdump("LMain;run()V", &WIDE)).unwrap();
    let profile = generated("");
    let places = Places::of(&profile, &machine, |_| {});
    let expected = [("LMain;run()V", 1, HEAVY), ("only-map", 1, Around::Unknown)]
        .map(|(name, samples, around)| (name.to_owned(), samples, vec![around]));
    assert_eq!(by_function(&profile, &places), expected);
    assert!(places.classes.values().eq([&InstructionClass::Heavy512]));
    assert!(places.unread.is_empty());
    std::fs::write(&dump, "none").unwrap();
    let places = Places::of(&profile, &machine, |_| {});
    assert_eq!(by_function(&profile, &places)[0].0, "by-map");
    let (path, why) = places.unread.first_key_value().unwrap();
    assert!(path.ends_with("jit-7.dump") && why.starts_with("byte 0: expected"), "{why}");
}

/// As `libperf-jvmti.so` writes it: below the home directory, mapped as code.
#[test]
fn a_jitdump_is_found_where_the_process_has_mapped_it() {
    let (directory, with_maps) = machine(None);
    let write = |path: &str, name: &str| {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, jitdump(name, &WIDE)).unwrap();
    };
    let profile = generated(
        "java 7 0.5: PERF_RECORD_MMAP2 7/8: [0x7000(0x1000) @ 0 fe:00 1 2]: r-xp \
         /root/.debug/jit/java-jit-1/jit-7.dump\n\n",
    );
    let name = |machine: &Machine| {
        let places = Places::of(&profile, machine, |_| {});
        by_function(&profile, &places).into_iter().map(|found| found.0).max().unwrap()
    };
    let without = Machine { maps: None, ..with_maps.clone() };
    assert_eq!(name(&without), "?");
    write("tmp/jit-7.dump", "another process's");
    assert_eq!(name(&without), "another process's");
    write("root/.debug/jit/java-jit-1/jit-7.dump", "its own");
    assert_eq!([name(&without), name(&with_maps)], ["its own", "its own"]);
    write("jit-7.dump", "the directory's");
    assert_eq!([name(&without), name(&with_maps)], ["its own", "the directory's"]);
}
