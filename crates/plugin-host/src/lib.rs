//! The managed service's side of plug-ins: loads them, checks what they say, has their policies work as engines.
//!
//! ```text
//!  file ─▶ library ─▶ table ─▶ Plugins ─ build ─▶ PluginEngine ─▶ functions of the plug-in
//!          whose is it,  version,  by kind,          a PolicyEngine:    checked: time, panic, numbers,
//!          a copy        layout    newest first      it may fail        texts, states
//! ```
//!
//! A plug-in runs with the rights of the service, and can do what the service can. What is checked here are mistakes,
//! not attacks: an address that a plug-in gives cannot be checked.
//!
//! | module | holds |
//! |---|---|
//! | [`plugins`] | the plug-ins of a service, and what has gone wrong with them |
//! | [`library`] | a file on its way into the process |
//! | [`elf`] | whether a file has all of its library |
//! | [`table`] | what a library says that it has |
//! | [`engine`] | a policy of a plug-in as an engine, which fails in the place of the service |
//! | [`calling`] | what a plug-in gets in hand during a call |
//! | [`watch`] | calls of plug-ins that are not over |

#![allow(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

mod calling;
mod elf;
mod engine;
mod library;
mod plugins;
mod table;
#[cfg(test)]
mod testing;
mod watch;

pub use library::FileError;
pub use plugins::{FaultCounts, Plugin, PluginError, Plugins};
pub use table::{PluginKind, TableError};
