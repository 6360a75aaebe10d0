//! Numbers of programs and sites by name. A number is the same in all processes of a program, and
//! in later ones: what the policy learns about a program is stored under these numbers, so it
//! survives the last process as long as the numbers are remembered.
//!
//! Of the sites that no process has, a limited number per user is remembered: those that were there
//! last. Everything is forgotten when the server ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use dimmer_policy::server::{ProgramId, SiteId};

use crate::clients::Site;

/// Number of sites without a process that are remembered per user. A guess: as many as one process
/// may have.
const OF_USER: usize = dimmer_protocol::SITES;

/// Number of sites without a process that are remembered for all users together, of some hundred
/// bytes each. A guess. When it is exceeded, the user with the most such sites loses the oldest.
const OF_ALL: usize = 16 * OF_USER;

/// What is forgotten: a site, or with `None` a program, of which nothing is left then.
pub type Forgotten = (ProgramId, Option<SiteId>);

/// Programs and sites by name.
#[derive(Debug, Default)]
pub struct Names {
    programs: HashMap<(u32, String), ProgramId>,
    known: HashMap<ProgramId, Program>,
    /// The next number of a program, of a site, and of a site's leaving.
    next: (u64, u64, u64),
    /// Sites that no process has, by user and in the order in which the last process left.
    absent: BTreeMap<u32, BTreeMap<u64, (ProgramId, Place)>>,
}

/// A site's name and line.
type Place = (Arc<str>, u32);

#[derive(Debug)]
struct Program {
    user: u32,
    name: String,
    processes: usize,
    sites: HashMap<Place, Known>,
}

#[derive(Debug)]
struct Known {
    id: SiteId,
    /// The number of places in processes' tables that hold it.
    places: usize,
    /// When the last of these places left.
    left: u64,
}

impl Names {
    /// Registers a process of a user's program.
    pub fn join(&mut self, user: u32, name: &str) -> ProgramId {
        let (next, ..) = &mut self.next;
        let id = *self.programs.entry((user, name.to_owned())).or_insert_with(|| {
            *next += 1;
            ProgramId(*next)
        });
        let new = || Program { user, name: name.to_owned(), processes: 0, sites: HashMap::new() };
        self.known.entry(id).or_insert_with(new).processes += 1;
        id
    }

    /// The number of a program's site, counted at one more place; `None` if there is no process of
    /// the program.
    pub fn site(&mut self, program: ProgramId, name: &Arc<str>, line: u32) -> Option<SiteId> {
        let (_, next, _) = &mut self.next;
        let known = self.known.get_mut(&program)?;
        let site = known.sites.entry((Arc::clone(name), line)).or_insert_with(|| {
            *next += 1;
            Known { id: SiteId(*next), places: 0, left: 0 }
        });
        if site.places == 0
            && let Some(absent) = self.absent.get_mut(&known.user)
        {
            absent.remove(&site.left);
        }
        site.places += 1;
        Some(site.id)
    }

    /// Removes a process of a program, with its sites. Returns what is forgotten now.
    pub fn leave(&mut self, id: ProgramId, sites: &[Site]) -> Vec<Forgotten> {
        let mut forgotten = Vec::new();
        let Some(program) = self.known.get_mut(&id) else { return forgotten };
        let user = program.user;
        program.processes -= 1;
        for site in sites {
            let place = (site.name.clone(), site.line);
            let Some(known) = program.sites.get_mut(&place) else { continue };
            known.places -= 1;
            if known.places == 0 {
                let (.., left) = &mut self.next;
                *left += 1;
                known.left = *left;
                self.absent.entry(user).or_default().insert(*left, (id, place));
            }
        }
        self.forget_if_empty(id, &mut forgotten);
        while self.absent.get(&user).is_some_and(|absent| absent.len() > OF_USER) {
            self.forget_oldest(user, &mut forgotten);
        }
        let count = |names: &Self| names.absent.values().map(BTreeMap::len).sum::<usize>();
        while count(self) > OF_ALL
            && let Some((user, _)) = self.absent.iter().max_by_key(|(_, absent)| absent.len())
        {
            self.forget_oldest(*user, &mut forgotten);
        }
        self.absent.retain(|_, absent| !absent.is_empty());
        forgotten
    }

    /// Forgets the user's site that has been absent longest.
    fn forget_oldest(&mut self, user: u32, forgotten: &mut Vec<Forgotten>) {
        let Some(absent) = self.absent.get_mut(&user) else { return };
        let Some((_, (id, place))) = absent.pop_first() else { return };
        let Some(program) = self.known.get_mut(&id) else { return };
        forgotten.extend(program.sites.remove(&place).map(|site| (id, Some(site.id))));
        self.forget_if_empty(id, forgotten);
    }

    /// Forgets a program without processes and sites.
    fn forget_if_empty(&mut self, id: ProgramId, forgotten: &mut Vec<Forgotten>) {
        let is_empty = |program: &mut Program| program.processes == 0 && program.sites.is_empty();
        if let std::collections::hash_map::Entry::Occupied(mut entry) = self.known.entry(id)
            && is_empty(entry.get_mut())
        {
            let program = entry.remove();
            self.programs.remove(&(program.user, program.name));
            forgotten.push((id, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers the sites of a process with names from this range.
    fn sites(names: &mut Names, program: ProgramId, called: std::ops::Range<usize>) -> Vec<Site> {
        let site = |number: usize| {
            let name = Arc::from(format!("site {number}"));
            let id = names.site(program, &name, 1).unwrap();
            Site::new(id, (name, 1), Default::default())
        };
        called.map(site).collect()
    }

    #[test]
    fn a_program_that_comes_again_has_the_numbers_that_it_had() {
        let mut names = Names::default();
        let program = names.join(1000, "test");
        let had = sites(&mut names, program, 0..3);
        assert_eq!(names.leave(program, &had), []);
        assert_eq!(names.join(1000, "test"), program);
        let has = sites(&mut names, program, 0..3);
        assert!(had.iter().zip(&has).all(|(had, has)| had.id == has.id));
        assert!(names.absent[&1000].is_empty());
        // The same name of another user or of another program gets another number.
        let [other, named] = [names.join(1001, "test"), names.join(1000, "named")];
        assert!(other != program && named != program);
        assert_ne!(sites(&mut names, other, 0..1)[0].id, had[0].id);
        // A program without sites is forgotten.
        assert_eq!(names.leave(named, &[]), [(named, None)]);
    }

    #[test]
    fn a_site_is_there_as_long_as_one_process_has_it() {
        let mut names = Names::default();
        let program = names.join(1000, "test");
        names.join(1000, "test");
        let one = sites(&mut names, program, 0..2);
        let two = sites(&mut names, program, 1..3);
        names.leave(program, &one);
        assert_eq!(names.absent[&1000].len(), 1);
        names.leave(program, &two);
        assert_eq!(names.absent[&1000].len(), 3);
    }

    #[test]
    fn the_oldest_of_a_user_who_has_too_many_are_forgotten() {
        let mut names = Names::default();
        let first = names.join(1000, "first");
        let old = sites(&mut names, first, 0..2);
        assert_eq!(names.leave(first, &old), []);
        let other = names.join(1001, "other");
        let others = sites(&mut names, other, 0..2);
        names.leave(other, &others);
        let many = names.join(1000, "many");
        let made_up = sites(&mut names, many, 0..OF_USER);
        let forgotten = names.leave(many, &made_up);
        assert_eq!(forgotten, [(first, Some(old[0].id)), (first, Some(old[1].id)), (first, None)]);
        assert_eq!(names.join(1001, "other"), other);
        assert_ne!(names.join(1000, "first"), first);
    }

    #[test]
    fn many_users_together_fill_no_memory() {
        let mut names = Names::default();
        let small = names.join(7, "small");
        let few = sites(&mut names, small, 0..3);
        names.leave(small, &few);
        for user in 1000..1100 {
            let program = names.join(user, "test");
            let made_up = sites(&mut names, program, 0..OF_USER);
            names.leave(program, &made_up);
            let all: usize = names.known.values().map(|program| program.sites.len()).sum();
            assert!(all <= OF_ALL, "{all}");
        }
        assert_eq!(names.join(7, "small"), small);
        assert_eq!(names.programs.len(), names.known.len());
    }
}
