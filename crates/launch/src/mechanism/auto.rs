//! `--auto`: calls are delegated or migrated, or the program has narrower code, as the policy
//! server and earlier runs show that it gains.

use dimmer_host::affinity;
use dimmer_policy::narrowing::Form;
use dimmer_processor::units::CpuId;
use dimmer_protocol::Hello;

use super::{Definition, How, Setup, moving, narrow};
use crate::LaunchError;
use crate::chosen::Key;
use crate::forms::Forms;
use crate::named::Planned;
use crate::note::{Note, Notes};
use crate::served::Served;

/// Whatever the program gains by.
pub(super) const DEFINITION: Definition = Definition {
    name: "auto",
    summary: "any of these, as the policy daemon and earlier runs show that the program gains",
    moves: Some(How { migrates: true, delegates: true, is_auto: true, ..How::NONE }),
    prepare: moving::prepare,
};

/// What decides besides the calls that are observed.
#[derive(Debug)]
pub(super) struct Auto {
    /// The policy server, if there is one.
    served: Option<Served>,
    /// Whether the program has narrower code, if this run decides that.
    pub(super) forms: Option<Forms>,
}

impl Auto {
    /// Decides the program's code, and connects to a policy server.
    pub(super) fn begin(
        setup: &Setup<'_>,
        key: Option<Key>,
        functions: &[Planned],
    ) -> Result<Self, LaunchError> {
        let is_asked = |name| setup.asked.iter().any(|definition| definition.name == name);
        // If narrower code is asked for as well, there is nothing to decide.
        let key = key.filter(|_| !is_asked(narrow::DEFINITION.name));
        let decide = |key| Forms::decide(key, setup.request, setup.program);
        let mut auto = Self { served: None, forms: key.map(decide).transpose()? };
        // With narrower code no call moves, so the server would dedicate cores for nothing.
        if !auto.is_narrow() {
            let hello = |name| Hello::Serve { name };
            let served = Served::ask(hello, setup.program, functions);
            auto.served = Some(served).filter(Served::is_there);
        }
        Ok(auto)
    }

    /// Whether the program is to have narrower code.
    pub(super) fn is_narrow(&self) -> bool {
        self.forms.as_ref().is_some_and(|forms| forms.form == Form::Narrow)
    }

    /// The policy server, if there is one.
    pub(super) const fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    /// The CPUs that calls go to, and how many of the first of them to measure on: `own` if the
    /// user has named them, or if the server has none.
    pub(super) fn cores(
        &mut self,
        setup: &Setup<'_>,
        own: Vec<CpuId>,
    ) -> Result<(Vec<CpuId>, usize), LaunchError> {
        let tried = own.len();
        let served = self.served.as_mut().filter(|_| setup.request.cpus.is_none());
        let Some(served) = served else { return Ok((own, tried)) };
        let all = served.cores();
        let (cpus, tried) = if all.is_empty() {
            (own, tried)
        } else if setup.request.is_dedicated {
            return Err(LaunchError::ServerCoresShared);
        } else {
            // They are the ones for the calls of all programs.
            let allowed = affinity::allowed().map_err(LaunchError::Affinity)?;
            let most = allowed.len().saturating_sub(1);
            let usable = all.into_iter().take_while(|cpu| allowed.contains(cpu));
            let usable: Vec<CpuId> = usable.take(most).collect();
            if usable.is_empty() {
                return Err(LaunchError::ServerCoresForbidden);
            }
            // They may be all CPUs but one, and one is enough to measure what a move takes.
            (usable, 1)
        };
        served.follow_only(&cpus);
        Ok((cpus, tried))
    }

    /// Notes what decides.
    pub(super) fn note(&self, cpus: &[CpuId], notes: &mut Notes<'_>) {
        if !self.is_narrow() {
            notes(Note::Server { is_there: self.served.is_some() });
            let its = self.served.as_ref().map(Served::cores).filter(|its| !its.is_empty());
            if let Some(its) = its.filter(|its| its.iter().all(|cpu| !cpus.contains(cpu))) {
                notes(Note::ServerElsewhere { cpus: its });
            }
        }
        if let Some(forms) = &self.forms {
            notes(Note::Code { form: forms.form, reason: forms.reason });
        }
    }

    /// Looks for a server if the previous one is gone. Returns its cores and the program's if, from
    /// now on, calls cannot go there.
    pub(super) fn tend(&mut self) -> Option<(Vec<CpuId>, Vec<CpuId>)> {
        self.served.as_mut().and_then(Served::tend)
    }

    /// Names the functions to the server. Call it after the counts of all functions were written.
    pub(super) fn publish(&mut self) {
        if let Some(served) = &mut self.served {
            served.publish();
        }
    }
}
