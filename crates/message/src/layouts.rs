//! Layouts where they are used: of generated code, or of a set made at run time.
//!
//! ```text
//!   static FOO_LAYOUT ◀──────┐                     Layouts ──Arc──▶ table 0  table 1  table 2 ...
//!     Known(&BAR_LAYOUT)     ├── LayoutRef           │                         InSet(0), InSet(2)
//!   static BAR_LAYOUT        │   table + set ◀───────┘ get, named, iter
//! ```
//!
//! The tables of a set refer to each other by index, so cycles cost nothing and the set goes as a whole.
//! A [`LayoutRef`] carries the set along, borrowed. That of a generated table carries an empty one.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

use crate::layout::{FieldLayout, MessageLayout, Nested};

/// The tables of a set. [`Nested::InSet`] is an index into them.
#[derive(Debug)]
pub(crate) struct Tables(Vec<MessageLayout>);

impl Tables {
    /// The layout of the messages in a field of one of these tables, or of a generated one.
    #[inline]
    pub(crate) fn nested(&self, field: &FieldLayout) -> Option<&MessageLayout> {
        match field.nested {
            Nested::None => None,
            Nested::Known(table) => Some(table),
            Nested::InSet(index) => Some(&self.0[index as usize]),
        }
    }
}

/// The set of generated tables, which refer to each other directly.
static NO_TABLES: Tables = Tables(Vec::new());

/// A message's layout: a generated table, or one of [`Layouts`], borrowed.
///
/// Two are equal if they are the same table, not if they place fields alike.
#[derive(Clone, Copy)]
pub struct LayoutRef<'l> {
    table: &'l MessageLayout,
    /// Where the table's indexes point.
    set: &'l Tables,
}

// Only of 'static tables: a set's own table must come with its set.
impl From<&'static MessageLayout> for LayoutRef<'static> {
    #[inline]
    fn from(table: &'static MessageLayout) -> Self {
        LayoutRef {
            table,
            set: &NO_TABLES,
        }
    }
}

impl<'l> LayoutRef<'l> {
    /// Full name: `kv.GetRequest`.
    pub fn name(self) -> &'l str {
        &self.table.name
    }

    /// Size of the fixed part in bytes.
    #[inline]
    pub fn size(self) -> u32 {
        self.table.size
    }

    /// Bytes that this message takes as an element or as a sub-message: its fixed part, but at least
    /// one byte.
    #[inline]
    pub fn stride(self) -> u32 {
        self.table.stride()
    }

    /// Hash of everything that decides this layout and those of the messages in it; 0 for a layout
    /// made at run time.
    pub fn schema_hash(self) -> u64 {
        self.table.schema_hash
    }

    /// The fields, by ascending number.
    #[inline]
    pub fn fields(self) -> impl ExactSizeIterator<Item = FieldRef<'l>> + Clone {
        let set = self.set;
        let fields = self.table.fields().iter();
        fields.map(move |table| FieldRef { table, set })
    }

    /// The field with this number.
    #[inline]
    pub fn field(self, number: u32) -> Option<FieldRef<'l>> {
        let table = self.table.field(number)?;
        Some(FieldRef {
            table,
            set: self.set,
        })
    }

    /// The table alone. It must not leave the crate: without its set it means nothing.
    #[inline]
    pub(crate) fn table(self) -> &'l MessageLayout {
        self.table
    }

    /// The set that the table belongs to.
    pub(crate) fn set(self) -> &'l Tables {
        self.set
    }
}

impl PartialEq for LayoutRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.table, other.table)
    }
}

impl Eq for LayoutRef<'_> {}

impl Hash for LayoutRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::from_ref(self.table).hash(state);
    }
}

impl fmt::Debug for LayoutRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

/// A field of a [`LayoutRef`].
#[derive(Clone, Copy)]
pub struct FieldRef<'l> {
    table: &'l FieldLayout,
    set: &'l Tables,
}

impl<'l> FieldRef<'l> {
    /// Name in the `.proto` file.
    pub fn name(self) -> &'l str {
        &self.table.name
    }

    /// Name in JSON.
    pub fn json_name(self) -> &'l str {
        &self.table.json_name
    }

    /// The layout of the messages in this field (for a map: of its entries).
    #[inline]
    pub fn message(self) -> Option<LayoutRef<'l>> {
        let set = self.set;
        let table = set.nested(self.table)?;
        Some(LayoutRef { table, set })
    }

    /// Bytes from one element to the next, when the field is repeated.
    #[inline]
    pub fn stride(self) -> u32 {
        match self.message() {
            Some(layout) => layout.stride(),
            None => self.kind.slot_size(),
        }
    }
}

impl Deref for FieldRef<'_> {
    type Target = FieldLayout;

    #[inline]
    fn deref(&self) -> &FieldLayout {
        self.table
    }
}

impl fmt::Debug for FieldRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}

/// The layouts of all messages of a schema, for programs without generated code for it. Made by
/// [`Schema::layouts`](crate::schema::Schema::layouts).
///
/// Clones share the tables, and the last one frees them.
#[derive(Clone, Debug)]
pub struct Layouts {
    tables: Arc<Tables>,
}

impl Layouts {
    /// A set of tables, whose indexes are positions in it.
    pub(crate) fn new(tables: Vec<MessageLayout>) -> Self {
        Layouts {
            tables: Arc::new(Tables(tables)),
        }
    }

    /// The layout of a message by its index in the schema.
    pub fn get(&self, index: u32) -> Option<LayoutRef<'_>> {
        let table = self.tables.0.get(index as usize)?;
        Some(self.layout_ref(table))
    }

    /// The first layout with this full name.
    pub fn named(&self, name: &str) -> Option<LayoutRef<'_>> {
        self.iter().find(|layout| layout.name() == name)
    }

    /// The layouts in the schema's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = LayoutRef<'_>> {
        self.tables.0.iter().map(|table| self.layout_ref(table))
    }

    fn layout_ref<'l>(&'l self, table: &'l MessageLayout) -> LayoutRef<'l> {
        LayoutRef {
            table,
            set: &self.tables,
        }
    }
}
