//! Typed messages in memory: layout, views, validation, protobuf encoding.
