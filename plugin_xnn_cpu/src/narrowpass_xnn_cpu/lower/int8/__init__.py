"""Operations between DequantizeLinear and QuantizeLinear, computed with bytes from end to end."""
