//! Parts of a schema.

use std::collections::HashMap;

use super::{MethodSchema, Schema};

impl Schema {
    /// The schema of one method, in canonical order. `None`: there is no such method.
    pub fn of_method(&self, path: &str) -> Option<Schema> {
        let found = self
            .methods
            .binary_search_by(|method| method.path.as_str().cmp(path));
        let method = &self.methods[found.ok()?];
        let mut part = Part::new(self);
        let method = MethodSchema {
            request: part.add(method.request)?,
            response: part.add(method.response)?,
            ..method.clone()
        };
        part.schema.methods.push(method);
        Some(part.schema)
    }
}

/// Messages of a schema that another one is made of.
struct Part<'a> {
    of: &'a Schema,
    schema: Schema,
    /// Where those of `of` are, that were met.
    indexes: HashMap<u32, u32>,
}

/// A message whose fields are walked over: its index in the part, and the field that is next.
struct Visit {
    at: u32,
    field: usize,
}

impl<'a> Part<'a> {
    fn new(of: &'a Schema) -> Self {
        Self {
            of,
            schema: Schema::default(),
            indexes: HashMap::new(),
        }
    }

    /// Adds a message and those that it reaches, depth first. Returns its index.
    fn add(&mut self, index: u32) -> Option<u32> {
        let (first, is_new) = self.meet(index)?;
        // Messages may be nested deeper than a stack: a schema may come from anyone.
        let mut visits = Vec::new();
        if is_new {
            visits.push(Visit {
                at: first,
                field: 0,
            });
        }
        while let Some(visit) = visits.last_mut() {
            let at = visit.at as usize;
            let Some(field) = self.schema.messages[at].fields.get(visit.field) else {
                visits.pop();
                continue;
            };
            let place = visit.field;
            visit.field += 1;
            if let Some(message) = field.message {
                let (own, is_new) = self.meet(message)?;
                self.schema.messages[at].fields[place].message = Some(own);
                if is_new {
                    visits.push(Visit { at: own, field: 0 });
                }
            }
        }
        Some(first)
    }

    /// The index of a message in the part, and whether it was not there.
    fn meet(&mut self, index: u32) -> Option<(u32, bool)> {
        if let Some(own) = self.indexes.get(&index) {
            return Some((*own, false));
        }
        let own = self.schema.messages.len() as u32;
        let message = self.of.messages.get(index as usize)?;
        self.schema.messages.push(message.clone());
        self.indexes.insert(index, own);
        Some((own, true))
    }
}
