//! Layout tables from a schema, for programs without generated code for it.

use std::sync::OnceLock;

use super::{MessageSchema, Schema, SchemaError};
use crate::layout::{FieldLayout, MessageLayout, Nested};
use crate::plan::plan;

type Cell = &'static OnceLock<&'static MessageLayout>;

impl Schema {
    /// Makes the layouts of all messages, in the schema's order.
    ///
    /// Tables refer to each other, also in cycles, and views refer to tables without a lifetime. So
    /// these tables live until the process ends. A command line tool may call this once; a service
    /// must keep the result by the schema's hash and bound the number of schemas. The tables lack
    /// what a schema lacks: names of enumerations' values, and the hashes of single messages, which
    /// are 0.
    pub fn leak_layouts(&self) -> Result<Vec<&'static MessageLayout>, SchemaError> {
        let new_cell = |_| -> Cell { Box::leak(Box::default()) };
        let cells: Vec<Cell> = self.messages.iter().map(new_cell).collect();
        let mut layouts = Vec::with_capacity(cells.len());
        for (message, cell) in self.messages.iter().zip(&cells) {
            let layout = leak_layout(message, &cells)?;
            layouts.push(*cell.get_or_init(|| layout));
        }
        Ok(layouts)
    }
}

fn leak_layout(
    message: &MessageSchema,
    cells: &[Cell],
) -> Result<&'static MessageLayout, SchemaError> {
    let fields: Vec<_> = message
        .fields
        .iter()
        .map(|field| field.plan_field())
        .collect();
    let plan = plan(&fields).map_err(|_| SchemaError::Malformed("a oneof has too many cases"))?;
    let table = message
        .fields
        .iter()
        .zip(&plan.places)
        .map(|(field, place)| FieldLayout {
            name: field.name.clone().leak(),
            json_name: json_name(&field.name).leak(),
            number: field.number,
            kind: field.kind,
            shape: field.shape,
            presence: place.presence,
            offset: place.offset,
            nested: match field.message {
                Some(index) => Nested::Late(cells[index as usize]),
                None => Nested::None,
            },
            enumeration: None,
        });
    Ok(Box::leak(Box::new(MessageLayout {
        name: message.name.clone().leak(),
        size: plan.size,
        fields: table.collect::<Vec<_>>().leak(),
        schema_hash: 0,
    })))
}

/// A field's name in JSON, unless its `.proto` file says otherwise: `foo_bar` as `fooBar`.
fn json_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut upper = false;
    for c in name.chars() {
        if c == '_' {
            upper = true;
        } else if std::mem::take(&mut upper) {
            out.push(c.to_ascii_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}
