//! The live screen: draws what comes in and does what keys request, on the terminal of standard
//! input and output.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags};

use crate::screen;
use crate::view::{News, View, Wish};

/// Shows the view and what comes in, until a key or `is_over` ends it, and leaves the terminal as
/// it was. Keys, news and `is_over` are looked at once every `tick`.
///
/// # Errors
/// If the terminal cannot be used.
pub fn show(
    view: &mut View,
    news: &Receiver<News>,
    tick: Duration,
    is_over: impl Fn() -> bool,
) -> std::io::Result<Wish> {
    let shown =
        ratatui::try_init().and_then(|mut terminal| live(&mut terminal, view, news, tick, is_over));
    // If the terminal is gone, there is nothing to restore.
    let _ = ratatui::try_restore();
    shown
}

fn live(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    news: &Receiver<News>,
    tick: Duration,
    is_over: impl Fn() -> bool,
) -> std::io::Result<Wish> {
    let mut is_new = true;
    while !is_over() {
        if is_new {
            terminal.draw(|frame| screen::draw(view, frame))?;
        }
        is_new = false;
        if !wait(tick)? {
            return Ok(Wish::End);
        }
        while event::poll(Duration::ZERO)? {
            is_new = true;
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match view.press(key) {
                    Wish::On => {}
                    wish => return Ok(wish),
                },
                _ => {}
            }
        }
        for news in news.try_iter() {
            view.take(news);
            is_new = true;
        }
    }
    Ok(Wish::End)
}

/// Waits for a key, at most for `tick`; returns whether the terminal still exists. Otherwise
/// crossterm 0.29 would read the end of file forever.
fn wait(tick: Duration) -> std::io::Result<bool> {
    let (keys, tick) = (std::io::stdin(), tick.try_into().ok());
    let mut wanted = [PollFd::new(&keys, PollFlags::IN)];
    match rustix::event::poll(&mut wanted, tick.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(!wanted[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}
