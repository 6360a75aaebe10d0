//! What the four outputs say about three made-up machines.

mod csv;
mod fixtures;
mod html;
mod json;
mod table;
