//! The clock of CPUs now, by timing: for machines without counters of cycles, while other programs
//! run.

use dimmer_host::machine::Machine;
use dimmer_processor::units::CpuId;

use crate::calibration::{Calibration, midmean, tsc_samples};
use crate::machine::silicon;
use crate::program::Program;
use crate::silicon::Silicon;
use crate::target::{Job, Target as _, TargetError};

/// Windows of a look at one CPU: some 0.1 ms of its time.
const WINDOWS: usize = 400;

/// Measures the clock of the CPUs that this process may use.
#[derive(Debug)]
pub struct Clock {
    silicon: Silicon,
    calibration: Calibration,
    cpus: Vec<CpuId>,
    program: Program,
}

impl Clock {
    /// Calibrates the measurement on the first CPU, which takes some 0.1 s, and seconds on a busy
    /// machine.
    ///
    /// # Errors
    /// [`TargetError`]: the machine cannot run programs, or the clock does not settle.
    pub fn new(machine: &Machine) -> Result<Self, TargetError> {
        let cpus = machine.allowed.clone();
        let first = cpus.first().copied().unwrap_or(CpuId::new(0));
        let mut silicon = silicon(machine, first, false)?;
        let calibration = Calibration::take(&mut silicon, first)?;
        let mut program = Program::default();
        program.push(std::slice::from_ref(&calibration.clock), WINDOWS);
        Ok(Self { silicon, calibration, cpus, program })
    }

    /// The clock of each CPU (GHz), one after the other; those on which every window was
    /// interrupted are left out.
    ///
    /// # Cost
    /// Some 0.1 ms of each CPU, which a thread that runs there is kept from meanwhile.
    pub fn look(&mut self) -> Vec<f64> {
        let mut found = Vec::with_capacity(self.cpus.len());
        for cpu in &self.cpus {
            let job = Job { cpu: *cpu, program: &self.program };
            let Ok(traces) = self.silicon.run(&[job]) else { continue };
            let windows = 0..self.program.windows();
            let times = traces
                .iter()
                .map(|trace| tsc_samples(self.calibration.tsc, trace, windows.clone()));
            found.extend(
                times.filter_map(|times| Some(self.calibration.ghz(midmean(&times).ok()?))),
            );
        }
        found
    }
}
