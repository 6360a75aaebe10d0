//! The switches that make libraries and programs use narrower code: data, each with its source.

use crate::Width;
use crate::merge::Merge;

/// A switch of a library or program.
#[derive(Debug)]
pub struct Switch {
    /// The name by which users choose it.
    pub name: &'static str,
    /// The library or program that it is for, as a noun.
    pub title: &'static str,
    /// The programs that it applies to.
    pub applies: Applies,
    /// The means to set it.
    pub means: Means,
    /// The documentation or source file that describes it, with its version.
    pub source: &'static str,
    /// How it is known to work.
    pub evidence: Evidence,
    /// Its side effect; empty if there is none.
    pub side_effect: &'static str,
}

/// The programs that a switch applies to.
#[derive(Debug)]
pub struct Applies {
    /// Names of libraries, up to `.so` or `-`: `libcrypto` for `libcrypto.so.3`. The switch applies
    /// to programs that need one of them.
    pub libraries: &'static [&'static str],
    /// Names of programs that it applies to, whatever they need. The name of a program may end in a
    /// version.
    pub programs: &'static [&'static str],
    /// Whether it also applies to programs that load libraries or start programs at run time. Only
    /// a switch that is silent, and that no other library reads, may do so.
    pub loaders: bool,
    /// Whether it applies to programs built by the Go toolchain.
    pub go: bool,
}

/// The means to set a switch.
#[derive(Debug)]
pub enum Means {
    /// Environment variables to set.
    Environment(&'static [Variable]),
    /// Arguments that only the user can give.
    Arguments {
        /// The arguments for 256 bits.
        at_256: &'static str,
        /// The arguments for 128 bits.
        at_128: &'static str,
    },
}

/// An environment variable.
#[derive(Debug)]
pub struct Variable {
    /// The name of the variable.
    pub name: &'static str,
    /// The value for 256 bits.
    pub at_256: &'static str,
    /// The value for 128 bits.
    pub at_128: &'static str,
    /// How it is merged with a value that the user has set.
    pub merge: Merge,
}

impl Variable {
    /// The value if the user has not set the variable.
    #[must_use]
    pub fn value(&self, width: Width) -> String {
        match (self.merge, width) {
            (Merge::Capabilities, width) => crate::merge::capabilities(width),
            (_, Width::Bits256) => self.at_256.to_owned(),
            (_, Width::Bits128) => self.at_128.to_owned(),
        }
    }
}

/// How a switch is known to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Seen to work; the text names the version and the method.
    Verified(&'static str),
    /// Described by the source, but not yet seen to work in this project.
    Documented,
}

/// Programs that load libraries, or start other programs, without a trace of it in their files.
pub(crate) const LOADERS: [&str; 27] = [
    "ash", "bash", "busybox", "cargo", "dash", "deno", "dimmer", "dotnet", "env", "fish", "java",
    "julia", "ksh", "lua", "luajit", "make", "mpirun", "ninja", "node", "octave", "perl", "php",
    "pypy", "python", "ruby", "sh", "zsh",
];

const NOWHERE: Applies = Applies { libraries: &[], programs: &[], loaders: false, go: false };

/// All switches.
pub const SWITCHES: [Switch; 14] = [
    Switch {
        name: "glibc",
        title: "the C library",
        applies: Applies { libraries: &["libc"], ..NOWHERE },
        means: Means::Environment(&[Variable {
            name: "GLIBC_TUNABLES",
            at_256: "glibc.cpu.hwcaps=-AVX512F,-AVX512CD,-AVX512BW,-AVX512DQ,-AVX512VL,-AVX512ER,-AVX512PF",
            // AVX_Fast_Unaligned_Load is a separate preference, by which glibc chooses memcpy. The
            // names with `_Usable` are those before glibc 2.33. glibc ignores unknown names.
            at_128: "glibc.cpu.hwcaps=-AVX512F,-AVX512CD,-AVX512BW,-AVX512DQ,-AVX512VL,-AVX512ER,-AVX512PF,\
                     -AVX,-AVX2,-FMA,-FMA4,-AVX_Fast_Unaligned_Load,\
                     -AVX_Usable,-AVX2_Usable,-FMA_Usable,-FMA4_Usable",
            merge: Merge::Tunables,
        }]),
        source: "glibc 2.36, sysdeps/x86/cpu-tunables.c; manual, Hardware Capability Tunables",
        evidence: Evidence::Verified(
            "glibc 2.36: the variants of memcpy, strlen and six others that dlsym gives",
        ),
        side_effect: "variants of libraries below glibc-hwcaps for newer processors are no longer loaded",
    },
    Switch {
        name: "libcrypto",
        title: "OpenSSL",
        applies: Applies { libraries: &["libcrypto", "libssl"], loaders: true, ..NOWHERE },
        means: Means::Environment(&[Variable {
            name: "OPENSSL_ia32cap",
            at_256: "",
            at_128: "",
            merge: Merge::Capabilities,
        }]),
        source: "OpenSSL 1.1.1 to 3.5, doc/man3/OPENSSL_ia32cap.pod",
        evidence: Evidence::Verified(
            "OpenSSL 3.0.19: `openssl version -c`, functions called by `openssl speed`",
        ),
        side_effect: "",
    },
    Switch {
        name: "openblas",
        title: "OpenBLAS, also as NumPy and SciPy bring it",
        applies: Applies {
            libraries: &[
                "libopenblas",
                "libopenblas64",
                "libscipy_openblas",
                "libscipy_openblas64_",
                "libblas",
            ],
            loaders: true,
            ..NOWHERE
        },
        means: Means::Environment(&[Variable {
            name: "OPENBLAS_CORETYPE",
            at_256: "Haswell",
            at_128: "Nehalem",
            merge: Merge::Keep,
        }]),
        source: "OpenBLAS 0.3.21, README.md, Runtime CPU detection; driver/others/dynamic.c",
        evidence: Evidence::Verified(
            "OpenBLAS 0.3.31 in NumPy 2.4.6: the kind of core that it reports",
        ),
        side_effect: "",
    },
    Switch {
        name: "onednn",
        title: "oneDNN",
        applies: Applies {
            libraries: &[
                "libdnnl",
                "libmkldnn",
                "libtorch_cpu",
                "libtensorflow_cc",
                "libtensorflow_framework",
            ],
            loaders: true,
            ..NOWHERE
        },
        means: Means::Environment(&[
            Variable {
                name: "ONEDNN_MAX_CPU_ISA",
                at_256: "AVX2",
                at_128: "SSE41",
                merge: Merge::Keep,
            },
            // The name before version 3.
            Variable {
                name: "DNNL_MAX_CPU_ISA",
                at_256: "AVX2",
                at_128: "SSE41",
                merge: Merge::Keep,
            },
        ]),
        source: "oneDNN 2.5 and 3.0, developer guide, CPU Dispatcher Control",
        evidence: Evidence::Documented,
        side_effect: "",
    },
    Switch {
        name: "mkl",
        title: "oneMKL, on Intel processors",
        applies: Applies {
            libraries: &["libmkl_rt", "libmkl_core", "libmkl_intel_lp64", "libmkl_intel_ilp64"],
            loaders: true,
            ..NOWHERE
        },
        means: Means::Environment(&[Variable {
            name: "MKL_ENABLE_INSTRUCTIONS",
            at_256: "AVX2",
            at_128: "SSE4_2",
            merge: Merge::Keep,
        }]),
        source: "oneMKL 2024.1, developer guide, Instruction Set-Specific Dispatch on Intel Architectures",
        evidence: Evidence::Documented,
        side_effect: "",
    },
    Switch {
        name: "numpy",
        title: "NumPy",
        applies: Applies { loaders: true, ..NOWHERE },
        means: Means::Environment(&[Variable {
            name: "NPY_DISABLE_CPU_FEATURES",
            // The groups of NumPy 2.4, then those before. A version ignores names that it does not
            // know, with a warning.
            at_256: "X86_V4 AVX512_ICL AVX512_SPR \
                     AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL",
            at_128: "X86_V4 AVX512_ICL AVX512_SPR \
                     AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL \
                     X86_V3 AVX2 FMA3 FMA4 XOP F16C AVX",
            merge: Merge::List(' '),
        }]),
        source: "NumPy 2.4, reference, CPU build options, Runtime dispatch; numpy/_core/src/common/npy_cpu_features.c",
        evidence: Evidence::Verified("NumPy 2.4.6: `__cpu_features__`"),
        side_effect: "an ImportWarning, which Python hides by default, names the features that this NumPy does not know",
    },
    Switch {
        name: "go",
        title: "the Go runtime and standard library",
        applies: Applies { go: true, ..NOWHERE },
        means: Means::Environment(&[Variable {
            name: "GODEBUG",
            at_256: "cpu.avx512f=off,cpu.avx512bw=off,cpu.avx512vl=off",
            at_128: "cpu.avx512f=off,cpu.avx512bw=off,cpu.avx512vl=off,cpu.avx2=off,cpu.avx=off,cpu.fma=off",
            merge: Merge::List(','),
        }]),
        source: "Go 1.26, src/internal/cpu/cpu.go and cpu_x86.go",
        evidence: Evidence::Documented,
        side_effect: "versions without one of the names say so on standard error",
    },
    Switch {
        name: "jvm",
        title: "HotSpot",
        applies: Applies {
            libraries: &["libjvm", "libjli"],
            programs: &["java", "javac", "mvn", "gradle"],
            ..NOWHERE
        },
        means: Means::Environment(&[Variable {
            name: "JAVA_TOOL_OPTIONS",
            at_256: "-XX:UseAVX=2",
            at_128: "-XX:UseAVX=0",
            merge: Merge::List(' '),
        }]),
        source: "JDK 17, src/hotspot/cpu/x86/globals_x86.hpp; JVM Tool Interface, Tool Options",
        evidence: Evidence::Verified("OpenJDK 17.0.15: MaxVectorSize of -XX:+PrintFlagsFinal"),
        side_effect: "every virtual machine prints `Picked up JAVA_TOOL_OPTIONS: ...` to standard error",
    },
    Switch {
        name: "dotnet",
        title: ".NET",
        applies: Applies {
            libraries: &["libcoreclr", "libhostfxr"],
            programs: &["dotnet"],
            ..NOWHERE
        },
        means: Means::Environment(&[
            Variable { name: "DOTNET_EnableAVX512F", at_256: "0", at_128: "0", merge: Merge::Keep },
            Variable { name: "DOTNET_EnableAVX512", at_256: "0", at_128: "0", merge: Merge::Keep },
            Variable { name: "DOTNET_EnableAVX10v1", at_256: "0", at_128: "0", merge: Merge::Keep },
            Variable { name: "DOTNET_EnableAVX2", at_256: "1", at_128: "0", merge: Merge::Keep },
            Variable { name: "DOTNET_EnableAVX", at_256: "1", at_128: "0", merge: Merge::Keep },
            // The only prefix that versions before 6 know; they have no code of 512 bits.
            Variable { name: "COMPlus_EnableAVX2", at_256: "1", at_128: "0", merge: Merge::Keep },
            Variable { name: "COMPlus_EnableAVX", at_256: "1", at_128: "0", merge: Merge::Keep },
        ]),
        source: ".NET 8, src/coreclr/jit/jitconfigvalues.h (EnableAVX512F); the names without F since .NET 10; \
                 the prefix: .NET documentation, Runtime configuration options for debugging and profiling",
        evidence: Evidence::Verified(".NET Core 3.1.23, to 128 bits: Vector<float>.Count"),
        side_effect: "",
    },
    Switch {
        name: "x264",
        title: "x264",
        applies: Applies { programs: &["x264"], ..NOWHERE },
        means: Means::Arguments { at_256: "--asm avx2", at_128: "--asm sse4.2" },
        source: "x264 0.164, --fullhelp; common/cpu.c",
        evidence: Evidence::Verified("x264 0.164: the capabilities that it prints"),
        side_effect: "",
    },
    Switch {
        name: "x265",
        title: "x265, which uses AVX-512 only if it is asked to",
        applies: Applies { programs: &["x265"], ..NOWHERE },
        means: Means::Arguments { at_256: "--asm avx2", at_128: "--asm sse4.2" },
        source: "x265 3.5, documentation, Command Line Options, --asm",
        evidence: Evidence::Verified("x265 3.5: the capabilities that it prints"),
        side_effect: "",
    },
    Switch {
        name: "dav1d",
        title: "dav1d",
        applies: Applies { programs: &["dav1d"], ..NOWHERE },
        means: Means::Arguments { at_256: "--cpumask avx2", at_128: "--cpumask sse41" },
        source: "dav1d 1.0.0, --help",
        evidence: Evidence::Documented,
        side_effect: "",
    },
    Switch {
        name: "svt-av1",
        title: "SVT-AV1",
        applies: Applies { programs: &["SvtAv1EncApp"], ..NOWHERE },
        means: Means::Arguments { at_256: "--asm avx2", at_128: "--asm sse4_2" },
        source: "SVT-AV1 1.4.1, --help",
        evidence: Evidence::Documented,
        side_effect: "",
    },
    Switch {
        name: "ffmpeg",
        title: "FFmpeg's own code",
        applies: Applies { programs: &["ffmpeg", "ffplay", "ffprobe"], ..NOWHERE },
        means: Means::Arguments {
            at_256: "-cpuflags -avx512-avx512icl",
            at_128: "-cpuflags -avx512-avx512icl-avx2-avx-fma3-fma4-xop",
        },
        source: "FFmpeg 5.1, documentation, ffmpeg(1), -cpuflags",
        evidence: Evidence::Documented,
        side_effect: "",
    },
];
