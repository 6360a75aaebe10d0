//! `--boost`: the locks of a program are observed, to find those whose holders would gain by a
//! faster clock (paper 002, §4.4).

use dimmer_host::models;
use dimmer_host::root::Root;
use dimmer_observe::Place;
use dimmer_processor::units::CpuId;

use super::{Definition, End, Mechanism, Prepared, Setup};
use crate::account::Summary;
use crate::locks::{self, Advice};
use crate::note::Notes;
use crate::{LaunchError, preload};

/// Locks are observed.
pub(super) const DEFINITION: Definition = Definition {
    name: "boost",
    summary: "shows which locks are held so long that a faster clock for their holders would pay; changes nothing",
    moves: None,
    prepare,
};

/// A program whose locks are observed.
#[derive(Debug)]
struct Observing {
    root: Root,
    /// Where its processes make their ledgers.
    place: Place,
    advice: Option<Advice>,
}

fn prepare(setup: &mut Setup<'_>) -> Result<Prepared, LaunchError> {
    let model = setup.request.model.as_deref().map(models::named).transpose()?;
    let advice = model.as_ref().map(Advice::new).transpose()?;
    let place = Place::in_memory().map_err(LaunchError::LockPlace)?;
    preload::preload_boost(setup.command)?;
    setup.command.env(dimmer_contention::DIRECTORY, place.path());
    Ok(Some(Box::new(Observing { root: setup.root.clone(), place, advice })))
}

impl Mechanism for Observing {
    fn cpus(&self) -> Option<&[CpuId]> {
        None
    }

    fn look(&mut self, _: &mut Notes<'_>) {}

    fn finish(self: Box<Self>, _: &End) -> Summary {
        Summary::Locks(locks::read(&self.root, self.place.path(), self.advice))
    }
}
