//! The four outputs for three made-up machines.

mod csv;
mod fixtures;
mod html;
mod json;
mod picture;
mod table;
mod textfile;
