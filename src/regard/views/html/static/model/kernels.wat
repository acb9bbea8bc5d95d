;; The matrix product of the page's model, in float32 with 128-bit SIMD. `make wasm` builds kernels.wasm from this file.
(module
  (import "page" "memory" (memory 1))

  ;; out = x @ w + b. All addresses and strides are in bytes.
  ;;
  ;; The weights lie in panels of 8 columns: first the 8 biases, then for each input the 8 weights. So the innermost loop
  ;; reads one panel from beginning to end, and each panel stays in the cache for all rows. A tile of 4 rows and 8
  ;; columns is summed in 8 registers.
  (func (export "matmul")
    (param $x i32)          ;; (rows, inner)
    (param $x_stride i32)   ;; from one row of x to the next
    (param $panels i32)     ;; (columns / 8, 1 + inner, 8)
    (param $out i32)        ;; (rows, columns)
    (param $out_stride i32)
    (param $rows i32)       ;; a multiple of 4
    (param $inner i32)      ;; at least 1
    (param $columns i32)    ;; a multiple of 8
    (local $row i32) (local $column i32) (local $w i32) (local $end i32) (local $to i32)
    (local $x0 i32) (local $x1 i32) (local $x2 i32) (local $x3 i32)
    (local $left v128) (local $right v128) (local $value v128)
    (local $l0 v128) (local $l1 v128) (local $l2 v128) (local $l3 v128)
    (local $r0 v128) (local $r1 v128) (local $r2 v128) (local $r3 v128)
    (loop $panel
      (local.set $row (i32.const 0))
      (local.set $end (i32.add (local.get $panels) (i32.shl (i32.add (local.get $inner) (i32.const 1)) (i32.const 5))))
      (loop $tile
        (local.set $w (local.get $panels))
        (local.set $x0 (i32.add (local.get $x) (i32.mul (local.get $row) (local.get $x_stride))))
        (local.set $x1 (i32.add (local.get $x0) (local.get $x_stride)))
        (local.set $x2 (i32.add (local.get $x1) (local.get $x_stride)))
        (local.set $x3 (i32.add (local.get $x2) (local.get $x_stride)))
        (local.set $l0 (v128.load (local.get $w)))
        (local.set $r0 (v128.load offset=16 (local.get $w)))
        (local.set $l1 (local.get $l0))
        (local.set $l2 (local.get $l0))
        (local.set $l3 (local.get $l0))
        (local.set $r1 (local.get $r0))
        (local.set $r2 (local.get $r0))
        (local.set $r3 (local.get $r0))
        (loop $input
          (local.set $w (i32.add (local.get $w) (i32.const 32)))
          (local.set $left (v128.load (local.get $w)))
          (local.set $right (v128.load offset=16 (local.get $w)))
          (local.set $value (v128.load32_splat (local.get $x0)))
          (local.set $l0 (f32x4.add (local.get $l0) (f32x4.mul (local.get $value) (local.get $left))))
          (local.set $r0 (f32x4.add (local.get $r0) (f32x4.mul (local.get $value) (local.get $right))))
          (local.set $value (v128.load32_splat (local.get $x1)))
          (local.set $l1 (f32x4.add (local.get $l1) (f32x4.mul (local.get $value) (local.get $left))))
          (local.set $r1 (f32x4.add (local.get $r1) (f32x4.mul (local.get $value) (local.get $right))))
          (local.set $value (v128.load32_splat (local.get $x2)))
          (local.set $l2 (f32x4.add (local.get $l2) (f32x4.mul (local.get $value) (local.get $left))))
          (local.set $r2 (f32x4.add (local.get $r2) (f32x4.mul (local.get $value) (local.get $right))))
          (local.set $value (v128.load32_splat (local.get $x3)))
          (local.set $l3 (f32x4.add (local.get $l3) (f32x4.mul (local.get $value) (local.get $left))))
          (local.set $r3 (f32x4.add (local.get $r3) (f32x4.mul (local.get $value) (local.get $right))))
          (local.set $x0 (i32.add (local.get $x0) (i32.const 4)))
          (local.set $x1 (i32.add (local.get $x1) (i32.const 4)))
          (local.set $x2 (i32.add (local.get $x2) (i32.const 4)))
          (local.set $x3 (i32.add (local.get $x3) (i32.const 4)))
          (br_if $input (i32.lt_u (i32.add (local.get $w) (i32.const 32)) (local.get $end))))
        (local.set $to (i32.add (i32.add (local.get $out) (i32.mul (local.get $row) (local.get $out_stride)))
          (i32.shl (local.get $column) (i32.const 2))))
        (v128.store (local.get $to) (local.get $l0))
        (v128.store offset=16 (local.get $to) (local.get $r0))
        (local.set $to (i32.add (local.get $to) (local.get $out_stride)))
        (v128.store (local.get $to) (local.get $l1))
        (v128.store offset=16 (local.get $to) (local.get $r1))
        (local.set $to (i32.add (local.get $to) (local.get $out_stride)))
        (v128.store (local.get $to) (local.get $l2))
        (v128.store offset=16 (local.get $to) (local.get $r2))
        (local.set $to (i32.add (local.get $to) (local.get $out_stride)))
        (v128.store (local.get $to) (local.get $l3))
        (v128.store offset=16 (local.get $to) (local.get $r3))
        (local.set $row (i32.add (local.get $row) (i32.const 4)))
        (br_if $tile (i32.lt_u (local.get $row) (local.get $rows))))
      (local.set $panels (local.get $end))
      (local.set $column (i32.add (local.get $column) (i32.const 8)))
      (br_if $panel (i32.lt_u (local.get $column) (local.get $columns))))))
