//! What CPUs have done between two moments: entries of idle states, clock, energy. As the
//! performance monitor of paper 002, section 3.3, has it.
//!
//! - Idle states: `cpuidle/state*/usage` and `time`. Source: Linux
//!   `Documentation/admin-guide/pm/cpuidle.rst`.
//! - The clock: the registers APERF and MPERF. Their ratio is the mean clock, in base clocks, while
//!   the CPU was not idle. Source: Intel SDM, vol. 3B, §15.2; AMD APM, vol. 2, §17.2. Where they
//!   cannot be read, by timing when counts are read, if the caller wants that ([`timed_clock`]).
//! - Energy: `energy_uj` of the zones of packages, or else their registers. Source: Linux
//!   `Documentation/power/powercap/powercap.rst`; Intel SDM, vol. 3B, §15.10.1; AMD PPR for family
//!   17h, `RAPL_PWR_UNIT` and `PKG_ENERGY_STAT`.

use std::collections::BTreeMap;

use dimmer_processor::units::{CpuId, KiloHertz, Nanos};

use crate::cpufreq::clocks::Clocks;
use crate::cpufreq::policies;
use crate::cpuid::Cpuid;
use crate::msr;
use crate::root::Root;
use crate::timed_clock;
use crate::unavailable::Unavailable;

const MPERF: u32 = 0xe7;
const APERF: u32 = 0xe8;
const POWERCAP: &str = "/sys/class/powercap";

/// What can be read here of some CPUs.
#[derive(Clone, Debug)]
pub struct Sources {
    root: Root,
    cpus: Vec<CpuId>,
    /// By the name of the state, its directory of each CPU; or why there are none.
    pub idle: Result<BTreeMap<String, Vec<String>>, Unavailable>,
    /// The base clock, of which APERF and MPERF have a multiple; or why they cannot be read.
    pub clock: Result<KiloHertz, Unavailable>,
    /// Whether the clock is measured by timing.
    is_timed: bool,
    /// The zones of packages; or why there are none.
    pub energy: Result<Vec<Zone>, Unavailable>,
}

/// A zone whose energy is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its name, as in `package-0`.
    pub name: String,
    count: Count,
    /// The count starts again at zero after this (uJ); `None` if that is not known.
    range: Option<u64>,
}

/// Where the energy of a zone is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Count {
    /// In this file (uJ).
    File(String),
    /// In the lower half of this register of a CPU of the package, in units of 2^-`exponent` J.
    Register { cpu: CpuId, register: u32, exponent: u64 },
}

/// What was counted until a moment; `None` for what cannot be read, as of a CPU that is offline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By state and CPU: entries, and time in it (us).
    idle: Vec<Vec<Option<[u64; 2]>>>,
    /// By CPU: APERF and MPERF.
    clock: Vec<Option<[u64; 2]>>,
    /// By CPU: its clock at that moment, by timing.
    timed: Vec<Option<KiloHertz>>,
    /// By zone (uJ).
    energy: Vec<Option<u64>>,
}

/// What all CPUs have done in an interval. A source that there is not has nothing, and so has a CPU
/// whose counts cannot be read at both ends, or that began again: it was offline meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// By the name of an idle state: how often it was entered, and the time in it.
    pub idle: BTreeMap<String, (u64, Nanos)>,
    /// APERF and MPERF.
    pub clock: [u64; 2],
    /// The sum of the clocks (kHz) that were measured by timing at the end of the interval, and
    /// their number.
    pub timed: [u64; 2],
    /// By the name of a zone (uJ).
    pub energy: BTreeMap<String, u64>,
}

impl Sources {
    /// Finds what can be read of these CPUs.
    #[must_use]
    pub fn find(root: &Root, cpus: &[CpuId]) -> Self {
        let (root, cpus) = (root.clone(), cpus.to_vec());
        let (idle, clock, energy) = (states(&root, &cpus), base(&root, &cpus), zones(&root, &cpus));
        Self { root, cpus, idle, clock, is_timed: false, energy }
    }

    /// Measures the clock by timing if it cannot be read: [`timed_clock::on`] each CPU, whenever
    /// counts are read, which disturbs what the CPU executes. A made-up machine has no such clock.
    #[must_use]
    pub fn with_timing(self) -> Self {
        Self { is_timed: self.clock.is_err() && self.root.is_live(), ..self }
    }

    /// Whether the clock is measured by timing.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// Reads all counts.
    ///
    /// # Cost
    /// Two files of each idle state of each CPU, some 2 us each, and an interrupt of each CPU for
    /// its registers, which wakes it; or else, by timing, what [`timed_clock::on`] costs for each.
    #[must_use]
    pub fn read(&self) -> Counts {
        let both = |[first, second]: [Option<u64>; 2]| Some([first?, second?]);
        let count = |path: String| self.root.count(&path).ok();
        let of_state = |directory: &String| {
            both(["usage", "time"].map(|file| count(format!("{directory}/{file}"))))
        };
        let idle = self.idle.as_ref().map(|states| {
            states.values().map(|state| state.iter().map(of_state).collect()).collect()
        });
        let register = |cpu, register| msr::value(&self.root, cpu, register).ok();
        let of_cpu = |cpu: &CpuId| both([APERF, MPERF].map(|number| register(*cpu, number)));
        let clock = self.clock.as_ref().map(|_| self.cpus.iter().map(of_cpu).collect());
        let timed = self.cpus.iter().filter(|_| self.is_timed);
        let timed = timed.map(|cpu| timed_clock::on(&self.root, *cpu)).collect();
        let of_zone = |zone: &Zone| match &zone.count {
            Count::File(path) => count(path.clone()),
            Count::Register { cpu, register: number, exponent } => {
                Some(microjoules(register(*cpu, *number)? & u64::from(u32::MAX), *exponent))
            }
        };
        let energy = self.energy.as_ref().map(|zones| zones.iter().map(of_zone).collect());
        Counts {
            idle: idle.unwrap_or_default(),
            clock: clock.unwrap_or_default(),
            timed,
            energy: energy.unwrap_or_default(),
        }
    }

    /// What was counted between two moments.
    #[must_use]
    pub fn between(&self, before: &Counts, after: &Counts) -> Spent {
        let grown = |(before, after): (&Option<[u64; 2]>, &Option<[u64; 2]>)| {
            let (before, after) = ((*before)?, (*after)?);
            Some([after[0].checked_sub(before[0])?, after[1].checked_sub(before[1])?])
        };
        let sum = |before: &[Option<[u64; 2]>], after: &[Option<[u64; 2]>]| {
            let all = before.iter().zip(after).filter_map(grown);
            all.fold([0_u64; 2], |sum, one| [0, 1].map(|at| sum[at].saturating_add(one[at])))
        };
        let idle = self.idle.iter().flat_map(|states| states.keys());
        let idle = idle.zip(before.idle.iter().zip(&after.idle)).map(|(name, (before, after))| {
            let [entries, us] = sum(before, after);
            (name.clone(), (entries, Nanos::from_ns(us.saturating_mul(1000))))
        });
        let energy = self.energy.iter().flatten();
        let energy = energy.zip(before.energy.iter().zip(&after.energy));
        let energy = energy.filter_map(|(zone, (before, after))| {
            let (before, after) = ((*before)?, (*after)?);
            let wrapped = if after < before { zone.range? } else { 0 };
            Some((zone.name.clone(), after.saturating_add(wrapped).saturating_sub(before)))
        });
        Spent {
            idle: idle.collect(),
            clock: sum(&before.clock, &after.clock),
            timed: after
                .timed
                .iter()
                .flatten()
                .fold([0; 2], |[sum, number], clock| [sum.saturating_add(clock.khz()), number + 1]),
            energy: energy.collect(),
        }
    }
}

impl Spent {
    /// Adds another interval.
    pub fn add(&mut self, other: &Self) {
        for (name, (entries, time)) in &other.idle {
            let sum = self.idle.entry(name.clone()).or_default();
            sum.0 = sum.0.saturating_add(*entries);
            sum.1 = Nanos::from_ns(sum.1.ns().saturating_add(time.ns()));
        }
        let own = self.clock.iter_mut().chain(&mut self.timed);
        for (sum, more) in own.zip(other.clock.iter().chain(&other.timed)) {
            *sum = sum.saturating_add(*more);
        }
        for (name, energy) in &other.energy {
            let sum = self.energy.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*energy);
        }
    }

    /// The mean clock of the CPUs while they were not idle; `None` if they were, or none was read.
    #[must_use]
    pub fn mean_clock(&self, base: KiloHertz) -> Option<KiloHertz> {
        let [actual, reference] = self.clock;
        let khz = u128::from(base.khz()) * u128::from(actual);
        let khz = khz.checked_div(u128::from(reference))?;
        u64::try_from(khz).ok().map(KiloHertz::from_khz)
    }

    /// The mean of the clocks that were measured by timing; `None` if none was.
    #[must_use]
    pub fn timed_clock(&self) -> Option<KiloHertz> {
        let [sum, number] = self.timed;
        sum.checked_div(number).map(KiloHertz::from_khz)
    }
}

/// The idle states of these CPUs.
fn states(root: &Root, cpus: &[CpuId]) -> Result<BTreeMap<String, Vec<String>>, Unavailable> {
    let mut states = BTreeMap::<String, Vec<String>>::new();
    for cpu in cpus {
        let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle");
        for state in root.list(&directory).unwrap_or_default() {
            let state = format!("{directory}/{state}");
            if let Ok(name) = root.text(&format!("{state}/name")) {
                states.entry(name).or_default().push(state);
            }
        }
    }
    if states.is_empty() {
        let why = "no /sys/devices/system/cpu/cpu*/cpuidle/state*: the kernel has no idle driver";
        return Err(Unavailable::new("entries of idle states", why, "start it with cpuidle"));
    }
    Ok(states)
}

/// The base clock, if the registers of the first CPU can be read.
fn base(root: &Root, cpus: &[CpuId]) -> Result<KiloHertz, Unavailable> {
    let missing = |why: &str| Unavailable::new("the clock (APERF, MPERF)", why, "use bare metal");
    let cpu = cpus.first().ok_or_else(|| missing("the program's CPUs are not known"))?;
    msr::value(root, *cpu, APERF)?;
    let policy = policies(root).into_iter().find(|policy| policy.cpus.contains(cpu));
    let base = policy.and_then(|policy| Clocks::of(root, &policy)?.base);
    base.ok_or_else(|| missing("the kernel does not report the base clock (cpufreq)"))
}

/// The zones of packages: `intel-rapl:0`, on AMD processors, too. Not `psys`, which has the energy
/// of the packages again.
fn zones(root: &Root, cpus: &[CpuId]) -> Result<Vec<Zone>, Unavailable> {
    let missing = |why: String, remedy| Unavailable::new("energy (RAPL)", why, remedy);
    let is_outer = |name: &String| {
        name.strip_prefix("intel-rapl:").is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let names = root.list(POWERCAP).unwrap_or_default();
    let mut zones = Vec::new();
    for directory in names.into_iter().filter(is_outer) {
        let directory = format!("{POWERCAP}/{directory}");
        let name = root.text(&format!("{directory}/name")).unwrap_or_default();
        if !name.starts_with("package") {
            continue;
        }
        let energy = format!("{directory}/energy_uj");
        if root.count(&energy).is_err() {
            return Err(missing(format!("cannot read {energy}"), "run as root"));
        }
        let range = root.count(&format!("{directory}/max_energy_range_uj")).ok();
        zones.push(Zone { name, count: Count::File(energy), range });
    }
    if zones.is_empty() {
        return packages(root, cpus).map_err(|registers| {
            let why = format!("no intel-rapl zone under {POWERCAP}; {registers}");
            missing(why, "as root: modprobe intel_rapl_msr; not in virtual machines")
        });
    }
    Ok(zones)
}

/// The packages of these CPUs as zones, by their registers; or why there are none.
fn packages(root: &Root, cpus: &[CpuId]) -> Result<Vec<Zone>, String> {
    let cpuid = Cpuid::of(root).map_err(|error| error.to_string())?;
    let identity = cpuid.identity();
    let [unit, energy] = match (identity.vendor.as_str(), identity.family) {
        ("GenuineIntel", _) => [0x606, 0x611],
        ("AuthenticAMD", 0x17..) => [0xc001_0299, 0xc001_029b],
        _ => return Err("the registers of this processor are not known".to_owned()),
    };
    let package_of = |cpu: &CpuId| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        root.count(&path).unwrap_or(0)
    };
    // Any CPU of a package stands for it.
    let packages: BTreeMap<u64, CpuId> = cpus.iter().map(|cpu| (package_of(cpu), *cpu)).collect();
    let zone = |(package, cpu): (u64, CpuId)| {
        let units = msr::value(root, cpu, unit).map_err(|missing| missing.why)?;
        msr::value(root, cpu, energy).map_err(|missing| missing.why)?;
        // Hypervisors return zero for registers that they do not have.
        if units == 0 {
            return Err(format!("register {unit:#x} is zero"));
        }
        let exponent = units >> 8 & 0x1f;
        Ok(Zone {
            name: format!("package-{package}"),
            count: Count::Register { cpu, register: energy, exponent },
            range: Some(microjoules(1 << 32, exponent)),
        })
    };
    let zones: Vec<Zone> = packages.into_iter().map(zone).collect::<Result<_, _>>()?;
    if zones.is_empty() { Err("the program's CPUs are not known".to_owned()) } else { Ok(zones) }
}

/// A count of units of 2^-`exponent` J, in uJ.
fn microjoules(count: u64, exponent: u64) -> u64 {
    u64::try_from((u128::from(count) * 1_000_000) >> exponent).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Root, path: &str, content: &str) {
        let path = root.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn machine() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        (directory, root)
    }

    fn cpus() -> [CpuId; 2] {
        [0, 1].map(CpuId::new)
    }

    fn set(root: &Root, cpu: u32, [usage, time]: [&str; 2], [aperf, mperf]: [u64; 2], uj: &str) {
        let state = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle/state1");
        write(root, &format!("{state}/name"), "C1\n");
        write(root, &format!("{state}/usage"), usage);
        write(root, &format!("{state}/time"), time);
        let mut registers = vec![0; 8 * 0xe9];
        registers[8 * 0xe7..][..8].copy_from_slice(&mperf.to_le_bytes());
        registers[8 * 0xe8..][..8].copy_from_slice(&aperf.to_le_bytes());
        let path = root.path(&msr::path(root, CpuId::new(cpu)));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, registers).unwrap();
        write(root, "/sys/class/powercap/intel-rapl:0/name", "package-0\n");
        write(root, "/sys/class/powercap/intel-rapl:0/energy_uj", uj);
        write(root, "/sys/class/powercap/intel-rapl:0/max_energy_range_uj", "1000");
        let policy = "/sys/devices/system/cpu/cpufreq/policy0";
        for (name, content) in [
            ("affected_cpus", "0 1"),
            ("base_frequency", "3000000"),
            ("cpuinfo_max_freq", "4000000"),
            ("cpuinfo_min_freq", "800000"),
        ] {
            write(root, &format!("{policy}/{name}"), content);
        }
    }

    #[test]
    fn an_interval_has_what_was_counted_in_it() {
        let (_directory, root) = machine();
        set(&root, 0, ["10", "500"], [100, 100], "900");
        set(&root, 1, ["20", "700"], [1000, 1000], "900");
        let sources = Sources::find(&root, &cpus());
        let before = sources.read();
        set(&root, 0, ["13", "1500"], [700, 500], "900");
        // The second CPU was idle, and its entries began again; the energy has passed its range.
        set(&root, 1, ["2", "700"], [1000, 1000], "150");
        let mut spent = sources.between(&before, &sources.read());
        let idle = (3, Nanos::from_us(1000));
        assert_eq!(spent.idle, BTreeMap::from([("C1".to_owned(), idle)]));
        assert_eq!(spent.energy, BTreeMap::from([("package-0".to_owned(), 250)]));
        let base = sources.clock.clone().unwrap();
        assert_eq!(spent.mean_clock(base), Some(KiloHertz::from_khz(4_500_000)));
        spent.add(&spent.clone());
        assert_eq!((spent.idle["C1"].0, spent.energy["package-0"]), (6, 500));
        assert_eq!(Spent::default().mean_clock(base), None);
    }

    #[test]
    fn a_cpu_that_comes_back_and_energy_of_unknown_range_add_nothing() {
        let (_directory, root) = machine();
        set(&root, 0, ["10", "500"], [100, 100], "900");
        set(&root, 1, ["20", "700"], [1000, 1000], "900");
        std::fs::remove_file(root.path("/sys/class/powercap/intel-rapl:0/max_energy_range_uj"))
            .unwrap();
        write(&root, "/sys/class/powercap/intel-rapl:1/name", "psys\n");
        write(&root, "/sys/class/powercap/intel-rapl:1/energy_uj", "5");
        let sources = Sources::find(&root, &cpus());
        assert_eq!(sources.energy.as_ref().unwrap().len(), 1, "psys has it again");
        let state = "/sys/devices/system/cpu/cpu1/cpuidle/state1/usage";
        let register = msr::path(&root, CpuId::new(1));
        std::fs::remove_file(root.path(state)).unwrap();
        std::fs::remove_file(root.path(&register)).unwrap();
        let offline = sources.read();
        set(&root, 0, ["11", "501"], [110, 105], "900");
        set(&root, 1, ["25", "800"], [1010, 1005], "900");
        let back = sources.read();
        let spent = sources.between(&offline, &back);
        assert_eq!(spent.idle["C1"], (1, Nanos::from_us(1)));
        assert_eq!(spent.clock, [10, 5]);
        write(&root, "/sys/class/powercap/intel-rapl:0/energy_uj", "3");
        assert_eq!(sources.between(&back, &sources.read()).energy, BTreeMap::new());
    }

    #[test]
    fn without_zones_the_energy_is_that_of_the_packages_registers() {
        let (_directory, root) = machine();
        let table =
            "   0x00000000 0x00: eax=0x00000016 ebx=0x756e6547 ecx=0x6c65746e edx=0x49656e69\n";
        write(&root, crate::cpuid::TABLE_PATH, table);
        let set = |cpu: u32, units: u64, energy: u64| {
            let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            write(&root, &format!("{topology}/physical_package_id"), &cpu.to_string());
            let mut registers = vec![0; 8 * 0x612];
            registers[8 * 0x606..][..8].copy_from_slice(&units.to_le_bytes());
            registers[8 * 0x611..][..8].copy_from_slice(&energy.to_le_bytes());
            let path = root.path(&msr::path(&root, CpuId::new(cpu)));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, registers).unwrap();
        };
        // Units of 2^-14 J, of which the uppermost half of the register has none.
        set(0, 14 << 8 | 3, (1 << 32) - (1 << 14));
        set(1, 14 << 8 | 3, 0xff << 32);
        let sources = Sources::find(&root, &cpus());
        let before = sources.read();
        set(0, 14 << 8 | 3, 1 << 14);
        set(1, 14 << 8 | 3, 0xff << 32 | 3 << 13);
        let spent = sources.between(&before, &sources.read());
        let expected = [("package-0", 2_000_000), ("package-1", 1_500_000)];
        let expected = expected.map(|(name, uj)| (name.to_owned(), uj));
        assert_eq!(spent.energy, BTreeMap::from(expected), "one count began again");
        set(0, 0, 0);
        let why = Sources::find(&root, &cpus()).energy.unwrap_err().why;
        assert!(why.contains("register 0x606 is zero"), "{why}");
    }

    #[test]
    fn the_clock_is_timed_only_where_it_is_wanted_and_cannot_be_read() {
        let (_directory, root) = machine();
        let sources = Sources::find(&root, &cpus()).with_timing();
        assert!(!sources.is_timed(), "a made-up machine");
        let timed = |clocks: [Option<u64>; 2]| Counts {
            timed: clocks.map(|mhz| mhz.map(KiloHertz::from_mhz)).into(),
            ..Counts::default()
        };
        let (first, second) = (timed([Some(1000), Some(9000)]), timed([Some(2000), None]));
        let mut spent = sources.between(&first, &second);
        assert_eq!(spent.timed_clock(), Some(KiloHertz::from_mhz(2000)), "at the end alone");
        spent.add(&sources.between(&second, &timed([Some(3000), Some(4000)])));
        assert_eq!(spent.timed_clock(), Some(KiloHertz::from_mhz(3000)));
        assert_eq!(Spent::default().timed_clock(), None);
        let live = Sources::find(&Root::live(), &crate::affinity::allowed().unwrap());
        let has_registers = live.clock.is_ok();
        assert!(!live.is_timed() && live.with_timing().is_timed() != has_registers);
    }

    #[test]
    fn what_is_not_there_has_its_reason_and_nothing_is_counted() {
        let (_directory, root) = machine();
        let sources = Sources::find(&root, &cpus());
        let why = |missing: Unavailable| missing.why;
        assert!(why(sources.idle.clone().unwrap_err()).contains("no idle driver"));
        assert!(why(sources.clock.clone().unwrap_err()).contains("no /dev/cpu/0/msr"));
        assert!(why(sources.energy.clone().unwrap_err()).contains("no intel-rapl zone"));
        let counts = sources.read();
        assert_eq!(sources.between(&counts, &counts), Spent::default());
        write(&root, "/sys/class/powercap/intel-rapl:0/name", "package-0");
        let sources = Sources::find(&root, &cpus());
        assert!(why(sources.energy.unwrap_err()).contains("cannot read"), "without its file");
    }
}
