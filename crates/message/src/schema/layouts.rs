//! Layouts from a schema, for programs without generated code for it.

use std::borrow::Cow;
use std::collections::HashSet;

use super::{MessageSchema, Schema, SchemaError};
use crate::descriptor::method_id;
use crate::layout::{FieldLayout, MessageLayout, Nested};
use crate::layouts::{LayoutRef, Layouts};
use crate::plan::plan;

/// A method of a schema with what a call of it needs: a
/// [`MethodDescriptor`](crate::MethodDescriptor) made at run time.
#[derive(Clone, Debug)]
pub struct OwnedMethod {
    /// The path that gRPC uses: `/kv.Kv/Get`.
    pub path: String,
    /// [`method_id`] of the path.
    pub id: u32,
    /// The client sends a stream of requests.
    pub client_streaming: bool,
    /// The server sends a stream of responses.
    pub server_streaming: bool,
    layouts: Layouts,
    request: u32,
    response: u32,
}

impl OwnedMethod {
    /// The request's layout.
    pub fn request(&self) -> LayoutRef<'_> {
        self.layout(self.request)
    }

    /// The response's layout.
    pub fn response(&self) -> LayoutRef<'_> {
        self.layout(self.response)
    }

    fn layout(&self, index: u32) -> LayoutRef<'_> {
        let layout = self.layouts.get(index);
        layout.expect("checked with the schema")
    }
}

impl Schema {
    /// Makes the layouts of all messages, in the schema's order.
    ///
    /// They lack what a schema lacks: names of enumerations' values, and the hashes of single messages,
    /// which are 0.
    ///
    /// # Errors
    /// What [`Schema::parse`] refuses, and a oneof of more than 255 fields.
    pub fn layouts(&self) -> Result<Layouts, SchemaError> {
        self.check()?;
        let tables: Result<Vec<_>, _> = self.messages.iter().map(table_of).collect();
        Ok(Layouts::new(tables?))
    }

    /// Makes the methods, by path. They share one set of [`Schema::layouts`].
    ///
    /// # Errors
    /// Those of [`Schema::layouts`], and two methods with the same id.
    pub fn owned_methods(&self) -> Result<Vec<OwnedMethod>, SchemaError> {
        let layouts = self.layouts()?;
        let ids = self.methods.iter().map(|method| method_id(&method.path));
        if ids.collect::<HashSet<_>>().len() < self.methods.len() {
            return Err(SchemaError::Malformed("two methods have the same id"));
        }
        let methods = self.methods.iter().map(|method| OwnedMethod {
            path: method.path.clone(),
            id: method_id(&method.path),
            client_streaming: method.client_streaming,
            server_streaming: method.server_streaming,
            layouts: layouts.clone(),
            request: method.request,
            response: method.response,
        });
        Ok(methods.collect())
    }
}

/// The table of a message. Its indexes are those of the schema.
fn table_of(message: &MessageSchema) -> Result<MessageLayout, SchemaError> {
    let fields: Vec<_> = message
        .fields
        .iter()
        .map(|field| field.plan_field())
        .collect();
    let plan = plan(&fields).map_err(|_| SchemaError::Malformed("a oneof has too many cases"))?;
    let fields = message
        .fields
        .iter()
        .zip(&plan.places)
        .map(|(field, place)| FieldLayout {
            name: Cow::Owned(field.name.clone()),
            json_name: Cow::Owned(json_name(&field.name)),
            number: field.number,
            kind: field.kind,
            shape: field.shape,
            presence: place.presence,
            offset: place.offset,
            nested: field.message.map_or(Nested::None, Nested::InSet),
            enumeration: None,
        });
    Ok(MessageLayout {
        name: Cow::Owned(message.name.clone()),
        size: plan.size,
        fields: fields.collect(),
        schema_hash: 0,
    })
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
