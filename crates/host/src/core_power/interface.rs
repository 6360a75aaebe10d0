//! The calls (ioctl) of `/dev/isst_interface`. The file is opened for a few calls at a time: while
//! it is open, the kernel's modules cannot be unloaded.
//!
//! Layouts and numbers are those of `include/uapi/linux/isst_if.h`. Uses `unsafe` because no crate
//! used here has these calls.

use std::ffi::c_ulong;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;

use dimmer_processor::units::CpuId;

use super::made_up::MadeUp;
use super::{Class, DEVICE, DomainId, Place, State};
use crate::root::Root;

/// What can be asked and changed. Errors are those of the kernel.
pub(super) trait Interface {
    /// Which calls there are.
    fn platform(&self) -> io::Result<Platform>;
    /// The place of a CPU, as the processor numbers it.
    fn physical(&self, cpu: CpuId) -> io::Result<u32>;
    /// Before TPMI: gives the processor of a CPU a command and a sub-command with a parameter and
    /// data, and returns the answer.
    fn mailbox(&self, cpu: CpuId, command: [u16; 2], parameter: u32, data: u32) -> io::Result<u32>;
    /// Before TPMI: writes a register of the processor of a CPU, and returns what was written, or
    /// with `None` reads it.
    fn register(&self, cpu: CpuId, register: u32, write: Option<u32>) -> io::Result<u32>;
    /// With TPMI: whether a domain has core power.
    fn is_supported(&self, domain: DomainId) -> io::Result<bool>;
    /// With TPMI: what a place holds.
    fn read(&self, place: Place) -> io::Result<u64>;
    /// With TPMI: changes what a place holds.
    fn write(&self, place: Place, word: u64) -> io::Result<()>;
}

/// Which calls there are.
pub(super) struct Platform {
    /// The version.
    pub(super) version: u16,
    /// Whether there is a mailbox.
    pub(super) has_mailbox: bool,
    /// Whether there are registers.
    pub(super) has_registers: bool,
}

/// The interface of the machine under `root`: the kernel's, or, on a made-up machine, a file that
/// stands for it.
pub(super) fn open(root: &Root, for_writing: bool) -> io::Result<Box<dyn Interface>> {
    if !root.is_live() {
        return Ok(Box::new(MadeUp::open(root, for_writing)?));
    }
    let file = OpenOptions::new().read(true).write(for_writing).open(root.path(DEVICE))?;
    Ok(Box::new(Kernel(file)))
}

/// The kernel's file.
struct Kernel(File);

/// `struct isst_if_platform_info`.
#[repr(C)]
#[derive(Default)]
struct PlatformInfo {
    version: u16,
    driver_version: u16,
    most_commands: u16,
    has_mailbox: u8,
    has_registers: u8,
}

/// `struct isst_if_cpu_maps` with one `struct isst_if_cpu_map`.
#[repr(C)]
struct CpuMap {
    count: u32,
    logical: u32,
    physical: u32,
}

/// `struct isst_if_io_regs` with one `struct isst_if_io_reg`.
#[repr(C)]
struct Register {
    count: u32,
    is_write: u32,
    cpu: u32,
    register: u32,
    value: u32,
}

/// `struct isst_if_mbox_cmds` with one `struct isst_if_mbox_cmd`.
#[repr(C)]
struct Mailbox {
    count: u32,
    cpu: u32,
    parameter: u32,
    data: u32,
    answer: u32,
    command: [u16; 2],
    reserved: u32,
}

/// `struct isst_core_power`.
#[repr(C)]
#[derive(Default)]
struct CorePower {
    is_write: u8,
    package: u8,
    domain: u8,
    is_on: u8,
    is_supported: u8,
    is_ordered: u8,
}

/// `struct isst_clos_param`.
#[repr(C)]
#[derive(Default)]
struct ClassParameters {
    is_write: u8,
    package: u8,
    domain: u8,
    class: u8,
    min_mhz: u16,
    max_mhz: u16,
    weight: u8,
}

/// `struct isst_if_clos_assoc_cmds` with one `struct isst_if_clos_assoc`.
#[repr(C)]
struct Association {
    count: u16,
    is_write: u16,
    /// Whether the number of the CPU is the processor's; the kernel has no other.
    is_physical: u16,
    package: u8,
    domain: u8,
    core: u16,
    class: u16,
}

/// The numbers of the calls. The header has them made with the size of a pointer.
const PLATFORM: c_ulong = code(READ, 0);
const CPU_MAP: c_ulong = code(READ | WRITE, 1);
const REGISTER: c_ulong = code(WRITE, 2);
const MAILBOX: c_ulong = code(READ | WRITE, 3);
const CORE_POWER: c_ulong = code(READ | WRITE, 6);
const CLASS: c_ulong = code(READ | WRITE, 7);
const ASSOCIATION: c_ulong = code(READ | WRITE, 8);

const WRITE: c_ulong = 1;
const READ: c_ulong = 2;

const fn code(direction: c_ulong, number: c_ulong) -> c_ulong {
    direction << 30 | (size_of::<*const ()>() as c_ulong) << 16 | 0xFE << 8 | number
}

/// The clocks of classes are in MHz here, and in units of this in the registers
/// (`SST_MUL_FACTOR_FREQ`).
const RATIO_MHZ: u16 = 100;

impl Kernel {
    fn core_power(&self, domain: DomainId, set: Option<State>) -> io::Result<CorePower> {
        let mut argument = CorePower {
            is_write: set.is_some().into(),
            package: domain.package,
            domain: domain.domain,
            ..CorePower::default()
        };
        if let Some(State { is_on, is_ordered }) = set {
            (argument.is_on, argument.is_ordered) = (is_on.into(), is_ordered.into());
        }
        // SAFETY: the call reads and writes a `struct isst_core_power`, which this is.
        unsafe { self.call(CORE_POWER, &mut argument) }?;
        Ok(argument)
    }

    fn class(&self, id: DomainId, class: u8, set: Option<Class>) -> io::Result<Class> {
        let mut argument = ClassParameters {
            is_write: set.is_some().into(),
            package: id.package,
            domain: id.domain,
            class,
            ..ClassParameters::default()
        };
        if let Some(Class { weight, min, max }) = set {
            argument.weight = weight;
            argument.min_mhz = u16::from(min) * RATIO_MHZ;
            argument.max_mhz = u16::from(max) * RATIO_MHZ;
        }
        // SAFETY: the call reads and writes a `struct isst_clos_param`, which this is.
        unsafe { self.call(CLASS, &mut argument) }?;
        let ratio = |mhz: u16| u8::try_from(mhz / RATIO_MHZ).unwrap_or(Class::ANY);
        let [min, max] = [argument.min_mhz, argument.max_mhz].map(ratio);
        Ok(Class { weight: argument.weight, min, max })
    }

    fn association(&self, id: DomainId, core: u8, set: Option<u16>) -> io::Result<u16> {
        // Kernels do not check in the call below whether there is such a domain; in this one they
        // do.
        self.core_power(id, None)?;
        let mut argument = Association {
            count: 1,
            is_write: set.is_some().into(),
            is_physical: 1,
            package: id.package,
            domain: id.domain,
            core: core.into(),
            class: set.unwrap_or(0),
        };
        // SAFETY: the call reads and writes a `struct isst_if_clos_assoc_cmds` with as many
        // entries as it counts, one, which this is.
        unsafe { self.call(ASSOCIATION, &mut argument) }?;
        Ok(argument.class)
    }

    /// Makes a call.
    ///
    /// # Safety
    /// The call of this number reads and writes `T` and nothing else.
    unsafe fn call<T>(&self, code: c_ulong, argument: &mut T) -> io::Result<()> {
        // SAFETY: the caller's promise. In a file of another kind the number means nothing, and
        // the call fails.
        let result = unsafe {
            libc::syscall(libc::SYS_ioctl, self.0.as_raw_fd(), code, std::ptr::from_mut(argument))
        };
        // Calls of several commands return how many they have carried out.
        if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Interface for Kernel {
    fn platform(&self) -> io::Result<Platform> {
        let mut info = PlatformInfo::default();
        // SAFETY: the call writes a `struct isst_if_platform_info`, which this is.
        unsafe { self.call(PLATFORM, &mut info) }?;
        Ok(Platform {
            version: info.version,
            has_mailbox: info.has_mailbox != 0,
            has_registers: info.has_registers != 0,
        })
    }

    fn mailbox(&self, cpu: CpuId, command: [u16; 2], parameter: u32, data: u32) -> io::Result<u32> {
        let cpu = cpu.index();
        let mut argument =
            Mailbox { count: 1, cpu, parameter, data, answer: 0, command, reserved: 0 };
        // SAFETY: the call reads and writes a `struct isst_if_mbox_cmds` with as many entries as it
        // counts, one, which this is.
        unsafe { self.call(MAILBOX, &mut argument) }?;
        Ok(argument.answer)
    }

    fn register(&self, cpu: CpuId, register: u32, write: Option<u32>) -> io::Result<u32> {
        let (is_write, value) = (write.is_some().into(), write.unwrap_or(0));
        let mut argument = Register { count: 1, is_write, cpu: cpu.index(), register, value };
        // SAFETY: the call reads and writes a `struct isst_if_io_regs` with as many entries as it
        // counts, one, which this is.
        unsafe { self.call(REGISTER, &mut argument) }?;
        Ok(argument.value)
    }

    fn physical(&self, cpu: CpuId) -> io::Result<u32> {
        let mut map = CpuMap { count: 1, logical: cpu.index(), physical: 0 };
        // SAFETY: the call reads and writes a `struct isst_if_cpu_maps` with as many entries as it
        // counts, one, which this is.
        unsafe { self.call(CPU_MAP, &mut map) }?;
        Ok(map.physical)
    }

    fn is_supported(&self, domain: DomainId) -> io::Result<bool> {
        Ok(self.core_power(domain, None)?.is_supported != 0)
    }

    fn read(&self, place: Place) -> io::Result<u64> {
        Ok(match place {
            // TPMI has no such switch.
            Place::Feature(_) => return Err(io::ErrorKind::Unsupported.into()),
            Place::State(domain) => {
                let found = self.core_power(domain, None)?;
                State { is_on: found.is_on != 0, is_ordered: found.is_ordered != 0 }.word()
            }
            Place::Class(domain, class) => self.class(domain, class, None)?.word(),
            Place::Core(domain, core) => self.association(domain, core, None)?.into(),
        })
    }

    fn write(&self, place: Place, word: u64) -> io::Result<()> {
        match place {
            Place::Feature(_) => Err(io::ErrorKind::Unsupported.into()),
            Place::State(domain) => self.core_power(domain, Some(State::of_word(word))).map(|_| ()),
            Place::Class(domain, class) => {
                self.class(domain, class, Some(Class::of_word(word))).map(|_| ())
            }
            Place::Core(domain, core) => {
                let class = u16::try_from(word).map_err(|_| io::ErrorKind::InvalidInput)?;
                self.association(domain, core, Some(class)).map(|_| ())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::process::Command;

    use super::*;

    #[test]
    fn numbers_sizes_and_offsets_are_those_of_linux_on_64_bits() {
        let numbers = [PLATFORM, CPU_MAP, REGISTER, MAILBOX, CORE_POWER, CLASS, ASSOCIATION];
        let expected = [
            0x8008_FE00,
            0xC008_FE01,
            0x4008_FE02,
            0xC008_FE03,
            0xC008_FE06,
            0xC008_FE07,
            0xC008_FE08,
        ];
        assert_eq!(numbers, expected);
        let offsets = [
            offset_of!(PlatformInfo, has_mailbox),
            offset_of!(CpuMap, physical),
            offset_of!(Register, value),
            offset_of!(Mailbox, command),
            offset_of!(CorePower, is_on),
            offset_of!(CorePower, is_ordered),
            offset_of!(ClassParameters, min_mhz),
            offset_of!(ClassParameters, weight),
            offset_of!(Association, package),
            offset_of!(Association, core),
            offset_of!(Association, class),
        ];
        assert_eq!(offsets, [6, 8, 16, 20, 3, 5, 4, 8, 6, 8, 10]);
        let sizes = [
            size_of::<PlatformInfo>(),
            size_of::<CpuMap>(),
            size_of::<Register>(),
            size_of::<Mailbox>(),
            size_of::<CorePower>(),
            size_of::<ClassParameters>(),
            size_of::<Association>(),
        ];
        assert_eq!(sizes, [8, 12, 20, 28, 6, 10, 12]);
    }

    /// Headers before Linux 6.4 have no calls for TPMI.
    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
    fn numbers_and_layouts_are_those_of_the_installed_header() {
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (directory.path().join("codes.c"), directory.path().join("codes"));
        let text = "
            #include <stddef.h>
            #include <stdio.h>
            #if __has_include(<linux/isst_if.h>)
            #include <linux/ioctl.h>
            #include <linux/isst_if.h>
            #endif
            int main(void) {
            #ifdef ISST_IF_MAGIC
                printf(\"%lu %lu %lu %lu %zu %zu %zu %zu %zu\",
                       (unsigned long)ISST_IF_GET_PLATFORM_INFO,
                       (unsigned long)ISST_IF_GET_PHY_ID, (unsigned long)ISST_IF_IO_CMD,
                       (unsigned long)ISST_IF_MBOX_COMMAND, sizeof(struct isst_if_platform_info),
                       sizeof(struct isst_if_cpu_maps), sizeof(struct isst_if_io_regs),
                       sizeof(struct isst_if_mbox_cmds),
                       offsetof(struct isst_if_mbox_cmds, mbox_cmd[0].command));
            #endif
            #ifdef ISST_IF_CLOS_ASSOC
                printf(\" %lu %lu %lu %zu %zu %zu %zu %zu\",
                       (unsigned long)ISST_IF_CORE_POWER_STATE, (unsigned long)ISST_IF_CLOS_PARAM,
                       (unsigned long)ISST_IF_CLOS_ASSOC,
                       sizeof(struct isst_core_power), sizeof(struct isst_clos_param),
                       sizeof(struct isst_if_clos_assoc_cmds),
                       offsetof(struct isst_clos_param, prop_prio),
                       offsetof(struct isst_if_clos_assoc_cmds, assoc_info[0].clos));
            #endif
            }";
        std::fs::write(&source, text).unwrap();
        let built = Command::new("cc").arg(&source).arg("-o").arg(&program).status().unwrap();
        assert!(built.success());
        let found = Command::new(program).output().unwrap().stdout;
        let found = String::from_utf8(found).unwrap();
        let common = format!(
            "{PLATFORM} {CPU_MAP} {REGISTER} {MAILBOX} 8 12 20 28 {}",
            offset_of!(Mailbox, command),
        );
        let tpmi = format!(
            "{CORE_POWER} {CLASS} {ASSOCIATION} 6 10 12 {} {}",
            offset_of!(ClassParameters, weight),
            offset_of!(Association, class),
        );
        if found.is_empty() {
            println!("SKIPPED: no linux/isst_if.h");
        } else if found == common {
            println!("SKIPPED: linux/isst_if.h is older than the calls for TPMI");
        } else {
            assert_eq!(found, format!("{common} {tpmi}"));
        }
    }

    /// A file that is none of the kernel's knows no call.
    #[test]
    fn a_file_of_another_kind_is_an_error() {
        let kernel = Kernel(tempfile::tempfile().unwrap());
        let domain = DomainId { package: 0, domain: 0 };
        assert_eq!(kernel.platform().err().unwrap().raw_os_error(), Some(libc::ENOTTY));
        for place in [Place::State(domain), Place::Class(domain, 3), Place::Core(domain, 7)] {
            assert_eq!(kernel.read(place).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
            assert_eq!(kernel.write(place, 1).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        }
    }
}
